"""PostgreSQL crashes, stops answering, and is far away, under load (FAULTS 9, 11 and 13).

Single connections that die are in tests/concurrency/test_cut_connections.py (FAULTS 10).
"""

import itertools
import os
import time
from collections.abc import Callable

import httpx
import pytest

from tests.client import make_device, new_key
from tests.concurrency.crowd import Background, together
from tests.concurrency.loads import code_of
from tests.conftest import WEB_THREADS
from tests.faults.load import Load
from tests.faults.verdict import assert_sound_after
from tests.faults.world import EVERYTHING, WEB, World

#: Longer than any request may take (DESIGN rule 4.8); longer for whoever wants to be surer.
STOPPED = max(12.0, min(float(os.environ.get("FAULT_SECONDS", "0")), 20.0))
#: A request ends within ten seconds; the rest is this machine's.
LIMIT = 11.5
#: What a client may see while PostgreSQL is in trouble; never a 500, never a lost answer.
IN_TROUBLE = {"201", "STORAGE_UNAVAILABLE", "IDEMPOTENCY_IN_PROGRESS"}

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _running(world: World) -> None:
    world.start(*EVERYTHING)


def pids(world: World) -> dict[str, int]:
    """Who runs."""
    return {name: world.process(name).pid for name in EVERYTHING if world.runs(name)}


@pytest.mark.parametrize("how", ["stop_immediately", "kill"])
def test_a_postgresql_that_crashes_under_load_loses_nothing_that_was_promised(
    world: World, load: Load, how: str
) -> None:
    processes = pids(world)
    with load.running(writers=6, pause=0.01):
        time.sleep(1)
        getattr(world.postgres, how)()
        time.sleep(0.7)
        world.postgres.start()
        time.sleep(1)
    assert "STORAGE_UNAVAILABLE" in load.codes()  # it did hit somebody
    assert load.codes() <= IN_TROUBLE
    assert pids(world) == processes  # nobody had to be started again
    assert_sound_after(load)


def test_while_postgresql_is_stopped_requests_end_in_time_and_then_every_thread_recovers(
    world: World,
) -> None:
    sender, processes = make_device(), pids(world)
    # One each: of those who wait for one queue only a quarter may (DESIGN rule 4.8).
    recipients = itertools.cycle([make_device() for _ in range(WEB_THREADS)])

    def submit() -> tuple[httpx.Response, float]:
        with world.client() as relay:
            began = time.monotonic()
            answer = relay.submit(sender, next(recipients), key=new_key())
            return answer, time.monotonic() - began

    together([submit] * WEB_THREADS)  # every thread is connected
    world.postgres.pause()
    began = time.monotonic()
    during = Background(lambda: together([submit] * (WEB_THREADS - 2)))
    time.sleep(STOPPED)
    assert during.is_done()
    for answer, seconds in during.result():
        assert (answer.status_code, code_of(answer)) == (503, "STORAGE_UNAVAILABLE")
        assert seconds < LIMIT
    assert time.monotonic() - began >= STOPPED
    with world.client() as relay:
        assert relay.http.get("/livez").status_code == 200
    world.postgres.resume()
    recovers_on_every_thread(submit)
    assert "watchdog.cut" in world.log(WEB)
    assert pids(world) == processes
    world.drain()


def recovers_on_every_thread(submit: Callable[[], tuple[httpx.Response, float]]) -> None:
    """Backends that were stopped may still hold their rows until their limits strike."""
    deadline = time.monotonic() + 15
    while {answer.status_code for answer, _ in together([submit] * WEB_THREADS)} != {201}:
        assert time.monotonic() < deadline, "it does not recover"


def test_a_way_to_postgresql_that_is_slow_stalls_and_breaks_is_survived(
    world: World, load: Load
) -> None:
    with load.running(writers=6, pause=0.01):
        world.to_postgres.delay = 0.02
        time.sleep(2)
        world.to_postgres.delay = 0.0
        time.sleep(0.5)
        world.to_postgres.stall()
        time.sleep(2)
        world.to_postgres.flow()
        for _ in range(10):
            world.to_postgres.reset_all()
            time.sleep(0.15)
        world.to_postgres.refuse()
        time.sleep(1)
        world.to_postgres.heal()
        time.sleep(0.5)
    assert load.codes() <= IN_TROUBLE
    assert "STORAGE_UNAVAILABLE" in load.codes()
    assert_sound_after(load)
