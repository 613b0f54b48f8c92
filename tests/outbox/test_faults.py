"""What must be survived (FAULTS 3 to 8 and 22): real kills, a real Valkey wiped, full and away.

No test waits for a lease: the database's clock is moved past its end.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import pytest

from outbox import publishing
from outbox.models import Batch, Event, EventState
from outbox.topics import EventRef, Settlement
from tests.conftest import DatabaseClock
from tests.outbox.conftest import Register
from tests.outbox.kit import (
    Effects,
    OwnValkey,
    Processes,
    add_events,
    dispatch,
    event,
    round_trip,
    wait_until,
    work,
)

pytestmark = pytest.mark.usefixtures("valkey")

LEASE_IS_OVER = timedelta(seconds=60.1)
KILLED = -signal.SIGKILL


def is_drained() -> bool:
    return not Event.objects.exists()


# --- Killed processes ------------------------------------------------------------------------
def test_a_dispatcher_killed_before_the_publish_loses_nothing(
    register: Register, effects: Effects, processes: Processes, clock: DatabaseClock,
    valkey: OwnValkey,
) -> None:  # fmt: skip
    register(effects.all_done)
    wanted = add_events(20)
    assert processes.dispatcher("outbox.claimed=kill").wait() == KILLED
    assert set(Event.objects.values_list("state", flat=True)) == {EventState.PUBLISHED}
    assert valkey.client.llen("rq:queue:wake") == 0
    clock.shift(LEASE_IS_OVER)
    round_trip()
    assert sorted(effects.events) == sorted(wanted)
    assert len(effects.calls) == 1  # a lost job is no suspicion
    assert is_drained()


def test_a_dispatcher_killed_after_the_publish_repeats_no_effect(
    register: Register, effects: Effects, processes: Processes, clock: DatabaseClock,
    valkey: OwnValkey,
) -> None:  # fmt: skip
    register(effects.all_done)
    wanted = add_events(20)
    assert processes.dispatcher("outbox.published=kill").wait() == KILLED
    assert valkey.client.llen("rq:queue:wake") == 1
    work()
    assert is_drained()
    clock.shift(LEASE_IS_OVER)
    round_trip()
    assert sorted(effects.events) == sorted(wanted)


@pytest.mark.parametrize(
    "case",
    [
        ("worker.popped", 0, 1),  # nothing had begun
        ("worker.started", 1, 1),  # nobody knows how far it was
        ("worker.effect", 1, 2),  # at least once
        ("worker.settled", None, 1),  # PostgreSQL says it is done
    ],
    ids=lambda case: case[0],
)
def test_a_killed_worker_loses_nothing(
    case: tuple[str, int | None, int],
    register: Register,
    effects: Effects,
    processes: Processes,
    clock: DatabaseClock,
) -> None:
    point, started, times = case
    register(effects.all_done)
    wanted = add_events(5)
    dispatch()
    assert processes.worker(f"{point}=kill").wait() == KILLED
    expected = set() if started is None else {("published", started)}
    assert set(Event.objects.values_list("state", "starts")) == expected
    clock.shift(LEASE_IS_OVER)
    round_trip()
    assert sorted(effects.events) == sorted(wanted * times)
    assert is_drained()
    # After a start that did not end each travels alone: one of them may be the reason.
    repeated = effects.calls[times - 1 :]
    assert [len(call) for call in repeated] == ([1] * 5 if started else [5])


def test_a_worker_killed_between_the_pop_and_rqs_own_note_of_it_loses_nothing(
    register: Register, effects: Effects, valkey: OwnValkey, clock: DatabaseClock
) -> None:
    register(effects.all_done)
    wanted = add_events(3)
    dispatch()
    popped = valkey.client.lmove("rq:queue:wake", "rq:queue:wake:intermediate")
    assert popped
    assert work().jobs == 0
    clock.shift(LEASE_IS_OVER)
    round_trip()
    assert sorted(effects.events) == sorted(wanted)


# --- A wiped Redis, in each of those states ----------------------------------------------------
@pytest.mark.parametrize(
    "point",
    [
        "outbox.claimed",
        "outbox.published",
        "worker.popped",
        "worker.started",
        "worker.effect",
        "worker.settled",
    ],
)
def test_a_wiped_redis_is_drained_within_seconds(
    point: str,
    register: Register,
    effects: Effects,
    processes: Processes,
    valkey: OwnValkey,
) -> None:
    register(effects.all_done)
    dispatch()  # the mark of a running relay is there
    wanted = add_events(40)
    if point.startswith("outbox"):
        assert processes.dispatcher(f"{point}=kill").wait() == KILLED
    else:
        dispatch()
        assert processes.worker(f"{point}=kill").wait() == KILLED
    valkey.client.flushall()
    processes.worker()
    processes.dispatcher()
    assert wait_until(is_drained, 5, "the outbox to be drained") < 5
    assert set(effects.events) == set(wanted)
    assert len(effects.calls) == (2 if point == "worker.effect" else 1)  # never single jobs


def test_processes_that_run_survive_a_wipe_under_load(
    register: Register,
    effects: Effects,
    processes: Processes,
    valkey: OwnValkey,
) -> None:
    register(effects.all_done)
    processes.worker()
    processes.dispatcher()
    wanted: list[UUID] = []
    for _ in range(8):
        wanted += add_events(50)
        valkey.client.flushall()
        time.sleep(0.1)
    wait_until(is_drained, 5, "the outbox to be drained")
    assert set(effects.events) == set(wanted)


# --- Redis away --------------------------------------------------------------------------------
def test_a_redis_that_was_away_and_comes_back_empty_costs_no_failure(
    register: Register,
    effects: Effects,
    processes: Processes,
    valkey: OwnValkey,
) -> None:
    register(effects.all_done)
    worker = processes.worker()
    dispatcher = processes.dispatcher()
    first = add_events(10)
    wait_until(is_drained, 5, "the first events to be handled")
    valkey.kill()
    wanted = add_events(100)
    time.sleep(3)  # long enough for every backoff to reach its cap
    rows = set(Event.objects.values_list("state", "failures", "starts", "deliveries"))
    assert rows == {("pending", 0, 0, 0)}
    valkey.start()
    wait_until(is_drained, 5, "the outbox to be drained")
    assert sorted(effects.events) == sorted(first + wanted)
    assert worker.returncode is None
    assert dispatcher.returncode is None


def test_a_redis_that_hangs_stops_nobody_for_good(
    register: Register,
    effects: Effects,
    processes: Processes,
    valkey: OwnValkey,
) -> None:
    register(effects.all_done)
    processes.worker()
    processes.dispatcher()
    wait_until(lambda: valkey.client.keys("rq:relay:mark:*"), 5, "the mark")
    valkey.process.send_signal(signal.SIGSTOP)
    wanted = add_events(10)
    time.sleep(4)  # past the time limits of both
    assert set(Event.objects.values_list("failures", "starts")) == {(0, 0)}
    valkey.process.send_signal(signal.SIGCONT)
    wait_until(is_drained, 8, "the outbox to be drained")
    assert set(effects.events) == set(wanted)


def test_a_full_redis_costs_no_failure_and_is_drained_after(
    register: Register,
    effects: Effects,
    processes: Processes,
    valkey: OwnValkey,
) -> None:
    register(effects.all_done)
    processes.dispatcher()
    processes.worker()
    wait_until(lambda: valkey.client.keys("rq:relay:mark:*"), 5, "the mark")
    valkey.client.set("filler", b"x" * 1_000_000)
    valkey.client.config_set("maxmemory", 1_000_000)
    wanted = add_events(30)
    wait_until(
        lambda: Event.objects.filter(last_error="QUEUE_AWAY").count() == 30, 5, "the refusals"
    )
    assert set(Event.objects.values_list("failures", "starts")) == {(0, 0)}
    valkey.client.config_set("maxmemory", 0)
    wait_until(is_drained, 8, "the outbox to be drained")
    assert sorted(effects.events) == sorted(wanted)


# --- Poison ------------------------------------------------------------------------------------
def test_an_event_that_kills_its_worker_dies_and_its_neighbours_finish(
    register: Register, effects: Effects, processes: Processes, clock: DatabaseClock
) -> None:
    wanted = add_events(4)
    poison = wanted[1]

    def kills(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        if poison in {each.event_id for each in events}:
            os.kill(os.getpid(), signal.SIGKILL)
        return effects.all_done(events, seconds)

    register(kills)
    dispatch()
    assert processes.worker().wait() == KILLED
    for starts in range(1, 5):
        assert event(poison).starts == starts
        clock.shift(starts * LEASE_IS_OVER)
        dispatch()
        assert processes.worker().wait() == KILLED
        if starts == 1:  # the neighbours come alone, before or after this death
            let_neighbours_finish(processes)
    assert set(effects.events) == set(wanted) - {poison}
    assert event(poison).starts == 5
    clock.shift(5 * LEASE_IS_OVER)
    round_trip()
    row = event(poison)
    assert (row.state, row.starts, row.failures) == (EventState.DEAD, 5, 0)
    assert row.last_error == "NO_END"


def let_neighbours_finish(processes: Processes) -> None:
    """The rest of the single jobs, in a worker that is killed afterwards."""
    worker = processes.worker()
    wait_until(lambda: Event.objects.count() == 1, 10, "the neighbours to finish")
    worker.kill()


def test_an_event_that_oversleeps_fails_and_its_neighbours_finish(
    register: Register,
    effects: Effects,
    processes: Processes,
    clock: DatabaseClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publishing, "JOB_TIMEOUT", 1)
    wanted = add_events(3)
    poison = wanted[0]

    def oversleeps(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        if poison in {each.event_id for each in events}:
            time.sleep(30)
        return effects.all_done(events, seconds)

    register(oversleeps)
    processes.worker()
    dispatch()
    wait_until(lambda: set_of("failures") == {1}, 10, "the time limit to strike")
    clock.shift(timedelta(seconds=3.1))
    dispatch()
    wait_until(lambda: Event.objects.count() == 1, 10, "the neighbours to finish")
    assert set(effects.events) == set(wanted) - {poison}
    wait_until(lambda: set_of("failures") == {2}, 10, "the time limit to strike again")
    assert event(poison).last_error == "JobTimeoutException"


def set_of(column: str) -> set[object]:
    return set(Event.objects.values_list(column, flat=True))


# --- Ending well ---------------------------------------------------------------------------------
def test_a_worker_that_is_asked_to_stop_ends_its_job_first(
    register: Register, effects: Effects, processes: Processes
) -> None:
    def slow(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        effects.add([])  # it has begun
        time.sleep(1)
        return effects.all_done(events, seconds)

    register(slow)
    [wanted] = add_events(1)
    dispatch()
    worker = processes.command("work", "wake")
    wait_until(lambda: effects.calls, 5, "the handler to begin")
    os.kill(worker.pid, signal.SIGTERM)
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(5) == 0
    assert effects.events == [wanted]
    assert is_drained()


def test_an_idle_worker_and_an_idle_dispatcher_end_at_once_when_asked(
    register: Register, effects: Effects, processes: Processes
) -> None:
    from outbox import heartbeats

    register(effects.all_done)
    started = [processes.command("work", "wake"), processes.command("dispatch_outbox")]
    for name in ("work wake", "dispatch_outbox"):
        wait_until(lambda name=name: heartbeats.alive(name=name), 5, f"{name} to beat")
    for process in started:
        os.kill(process.pid, signal.SIGTERM)
    assert [process.wait(3) for process in started] == [0, 0]
    assert Batch.objects.count() == 0
