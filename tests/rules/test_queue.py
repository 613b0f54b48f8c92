"""What the queue must never become: a truth, a second clock, a part of the request (ADR 0002)."""

import ast
import re
from pathlib import Path
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection

from config.settings import _TIME_LIMITS
from outbox import heartbeats, publishing
from outbox.models import Event, EventState
from outbox.services import handling
from outbox.services.claiming import LEASE
from relay.services.sweeping import SLICE_SECONDS
from tests.client import make_device
from tests.concurrency.inside import InsideClient
from tests.conftest import PROJECT

#: The port, the worker behind it, and the mark that tells of a wipe.
BEHIND_THE_PORT = {"outbox/publishing.py", "outbox/sentinel.py", "outbox/services/working.py"}


def imported_by(path: Path) -> set[str]:
    """The packages that a file imports, at its top or further in."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def sources() -> list[Path]:
    return [
        path
        for app in ("config", "quotas", "idempotency", "outbox", "relay", "adminui")
        for path in (PROJECT / app).rglob("*.py")
    ]


def test_rq_is_known_behind_one_port_only() -> None:
    who = {
        str(path.relative_to(PROJECT))
        for path in sources()
        if imported_by(path) & {"rq", "django_rq"}
    }
    assert who == BEHIND_THE_PORT


def test_nobody_reads_what_rq_says_of_a_job() -> None:
    """A finished job is marked abandoned later, an effect that happened an exception."""
    asks = re.compile(r"\bget_status\(|\.is_(finished|failed|queued|started)\b|fetch_job|_registry")
    assert [str(path) for path in sources() if asks.search(path.read_text("utf-8"))] == []


def test_each_time_limit_ends_before_the_one_around_it() -> None:
    """An alarm does not interrupt PostgreSQL: the statement ends first, then the job, then the
    lease; and nobody is taken for dead who is only busy."""
    statement = _TIME_LIMITS["worker"][1] / 1000
    assert handling.HANDLER_SECONDS < statement < publishing.JOB_TIMEOUT
    assert handling.LEASE_MARGIN.total_seconds() > publishing.JOB_TIMEOUT
    assert LEASE > handling.LEASE_MARGIN
    assert publishing.JOB_TIMEOUT < heartbeats.GONE_AFTER
    assert SLICE_SECONDS < publishing.JOB_TIMEOUT


@pytest.fixture
def no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the queue's Redis gets an error."""

    def asked() -> None:
        raise AssertionError("the request asked for the queue")

    monkeypatch.setattr(publishing, "connection", asked)


def test_the_request_leaves_an_intent_and_asks_for_no_queue(
    inside: InsideClient, no_queue: None
) -> None:
    sender, recipient = make_device(), make_device()
    answer = inside.submit(sender, recipient, b"mail", message_id=uuid4())
    assert answer.status_code == 201
    event = Event.objects.get()
    assert (event.topic, event.state, event.deliveries) == ("wake", EventState.PENDING, 0)
    assert event.device_id == recipient.id


@pytest.mark.parametrize("table", ["outbox_event", "outbox_batch"])
def test_a_queue_table_is_vacuumed_by_count_and_leaves_room_for_updates(table: str) -> None:
    """By scale it would be vacuumed the less often the more it holds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE relname = %s", [table])
        [[options]] = cursor.fetchall()
    told = dict(option.split("=") for option in options)
    assert int(told["fillfactor"]) <= 80
    assert told["autovacuum_vacuum_scale_factor"] == "0"
    assert int(told["autovacuum_vacuum_threshold"]) == 5_000


def test_a_holder_of_an_old_transaction_is_cut_off() -> None:
    """It would keep vacuum from the queue tables (PgQue#80)."""
    limits = {role: idle for role, (_, _, idle) in _TIME_LIMITS.items() if role != "command"}
    assert all(0 < idle <= 60_000 for idle in limits.values())


def test_no_model_changed_without_a_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
