"""The commands of the outbox as an operator and a supervisor meet them: words and exit codes."""

import os
import signal
import subprocess
import sys

import pytest

from outbox import heartbeats
from outbox.heartbeats import Pulse
from outbox.models import Event
from relay.services.ticking import Clock
from tests.admin.commands import Finished, manage
from tests.client import make_device
from tests.conftest import PROJECT, test_database_url
from tests.outbox.kit import OwnValkey, add_events, wait_until

#: Nobody listens on port 1.
NO_REDIS = "redis://127.0.0.1:1/0"
NO_POSTGRES = "postgresql://a:b@127.0.0.1:1/x"


class Running:
    """A process of `manage.py` that runs until it is asked to stop."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=PROJECT,
            env={**os.environ, "DATABASE_URL": test_database_url(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, number: signal.Signals) -> Finished:
        """Ask it to stop; what it left."""
        self._process.send_signal(number)
        out, err = self._process.communicate(timeout=15)
        return Finished(self._process.returncode, out, err)


# --- check_health ----------------------------------------------------------------------------
def test_check_health_knows_the_living_from_the_dead() -> None:
    dead = manage("check_health", "work", "wake")
    assert (dead.code, dead.stdout) == (1, "")
    assert dead.stderr == "Refused: No work wake said within 60 s that it is alive.\n"
    Pulse(heartbeats.worker("wake")).beat()
    Pulse(heartbeats.worker("wake")).beat()
    alive = manage("check_health", "work", "wake", "--json")
    assert (alive.code, alive.json) == (0, {"name": "work wake", "alive": 2})


def test_check_health_of_nothing_known_is_a_mistake_and_without_a_database_a_no() -> None:
    unknown = manage("check_health", "werk", "wake")
    assert unknown.code == 2
    assert unknown.stderr == (
        "CommandError: There is no process 'werk wake': it is one of "
        "dispatch_outbox, work wake, work maintenance, tick.\n"
    )
    away = manage("check_health", "tick", DATABASE_URL=NO_POSTGRES)
    assert away.code == 1
    assert away.stderr.startswith("Unavailable: PostgreSQL does not answer")


# --- Command lines ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["work"], "the following arguments are required: queue"),
        (["work", "both"], "invalid choice: 'both'"),
        (["work", "wake", "maintenance"], "unrecognized arguments: maintenance"),
        (["work", "wake", "--max-jobs", "0"], "it must be at least 1"),
        (["work", "wake", "--max-jobs", "many"], "invalid"),
    ],
)
def test_a_worker_takes_exactly_one_queue_and_a_sensible_count(
    arguments: list[str], text: str
) -> None:
    done = manage(*arguments)
    assert done.code == 2
    assert text in done.stderr


@pytest.mark.parametrize("arguments", [["work", "wake"], ["dispatch_outbox"]])
def test_without_a_redis_url_neither_starts(arguments: list[str]) -> None:
    done = manage(*arguments, REDIS_URL="")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "Unavailable: REDIS_URL is not set: name the Redis of your queue.\n"


# --- Once, and something is away ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        (["dispatch_outbox", "--once"], {"REDIS_URL": NO_REDIS}, "Redis takes no jobs"),
        (["dispatch_outbox", "--once"], {"DATABASE_URL": NO_POSTGRES}, "PostgreSQL does not"),
        (["work", "wake", "--burst"], {"REDIS_URL": NO_REDIS}, "Redis does not answer"),
        (["work", "wake", "--burst"], {"DATABASE_URL": NO_POSTGRES}, "PostgreSQL does not"),
        (["tick", "--once"], {"DATABASE_URL": NO_POSTGRES}, "PostgreSQL does not answer"),
    ],
)
def test_what_could_not_be_done_at_once_is_no_success(
    arguments: list[str], environment: dict[str, str], text: str, valkey: OwnValkey
) -> None:
    done = manage(*arguments, **{"REDIS_URL": valkey.url, **environment})
    assert done.code == 1
    *log, last = done.stderr.splitlines()
    assert last.startswith(f"Unavailable: {text}")
    assert all(line.startswith("{") for line in log)


def test_once_says_what_it_did(valkey: OwnValkey) -> None:
    make_device()
    add_events(1, topic="wake")
    done = manage("dispatch_outbox", "--once", REDIS_URL=valkey.url)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout == "dispatch_outbox ended after 1 round; 1 event published\n"
    done = manage("work", "wake", "--burst", REDIS_URL=valkey.url)
    assert (done.code, done.stdout) == (0, "work wake ended after 1 job\n")
    assert not Event.objects.exists()
    done = manage("work", "wake", "--burst", "--json", REDIS_URL=valkey.url)
    assert done.json == {"queue": "wake", "jobs": 0}


def test_a_tick_beside_the_clock_says_that_it_is_not_its_turn(valkey: OwnValkey) -> None:
    clock = Clock.new()
    assert clock.tick()
    done = manage("tick", "--once", REDIS_URL=valkey.url)
    assert (done.code, done.stdout) == (0, "tick ended after 0 rounds; 0 rows swept\n")
    assert done.stderr.startswith("Another process is the clock just now")
    clock.let_go()
    done = manage("tick", "--once", "--json", REDIS_URL=valkey.url)
    assert (done.json["rounds"], done.stderr) == (1, "")


# --- Ending well -------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("arguments", "name", "facts"),
    [
        (["dispatch_outbox"], heartbeats.DISPATCHER, {"rounds", "published"}),
        (["work", "maintenance"], heartbeats.worker("maintenance"), {"queue", "jobs"}),
        (["tick"], heartbeats.CLOCK, {"rounds", "rows"}),
    ],
    ids=["dispatcher", "worker", "clock"],
)
def test_a_process_ends_with_one_line_and_leaves_no_heartbeat(
    arguments: list[str],
    name: str,
    facts: set[str],
    number: signal.Signals,
    valkey: OwnValkey,
) -> None:
    running = Running(*arguments, "--json", REDIS_URL=valkey.url)
    wait_until(lambda: heartbeats.alive(name=name), 20, f"{name} to beat")
    done = running.end(number)
    assert (done.code, done.stderr) == (0, "")
    assert set(done.json) == facts
    assert heartbeats.alive(name=name) == 0
