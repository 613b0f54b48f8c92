"""The clock hands the sweeps to the workers, and does what they do not (DESIGN section 5)."""

from datetime import timedelta

import pytest

from config.kernel import clock as database_clock
from outbox import heartbeats
from outbox.heartbeats import Pulse
from outbox.models import Batch, SweepRun
from outbox.services import batches
from relay.models import Body
from relay.services.sweeping import SLICE_SECONDS, sweep_slice
from relay.services.sweeps import SWEEPS
from relay.services.ticking import Clock
from tests.client import make_device
from tests.conftest import DatabaseClock
from tests.factories import store_ended
from tests.outbox.kit import OwnValkey, work

NAMES = {sweep.name for sweep in SWEEPS}


@pytest.fixture
def running(valkey: OwnValkey) -> Clock:
    """A clock that has swept once, and a live worker for the next time."""
    clock = Clock.new()
    assert clock.tick()
    Pulse(heartbeats.worker("maintenance")).beat()
    return clock


def queued(valkey: OwnValkey) -> int:
    return int(valkey.client.llen("rq:queue:maintenance"))


def test_sweeps_are_handed_to_the_workers_that_are_alive(running: Clock, valkey: OwnValkey) -> None:
    store_ended(make_device().id)
    assert running.tick()
    assert queued(valkey) == len(NAMES)
    assert Body.objects.exists()
    assert work("maintenance").jobs == len(NAMES)
    assert not Body.objects.exists()
    run = SweepRun.objects.get(name="clean")
    assert run.succeeded_at is not None
    assert run.queued_at is not None
    assert run.succeeded_at > run.queued_at
    assert run.rows == 1


def test_none_is_handed_over_while_its_last_is_pending(running: Clock, valkey: OwnValkey) -> None:
    running.tick()
    running.tick()
    assert queued(valkey) == len(NAMES)
    work("maintenance")
    running.tick()
    assert queued(valkey) == len(NAMES)


def test_a_job_that_was_lost_is_handed_over_again(
    running: Clock, valkey: OwnValkey, clock: DatabaseClock
) -> None:
    running.tick()
    valkey.client.flushall()
    clock.shift(timedelta(seconds=89))
    Pulse(heartbeats.worker("maintenance")).beat()
    running.tick()
    assert queued(valkey) == 0
    clock.shift(timedelta(seconds=91))
    Pulse(heartbeats.worker("maintenance")).beat()
    running.tick()
    assert queued(valkey) == len(NAMES)


def test_what_did_not_succeed_for_five_minutes_the_clock_runs_itself(
    running: Clock, valkey: OwnValkey, clock: DatabaseClock
) -> None:
    """Jobs are taken and come to nothing; the promise of the hour holds all the same."""
    store_ended(make_device().id)
    clock.shift(timedelta(minutes=4, seconds=50))
    Pulse(heartbeats.worker("maintenance")).beat()
    running.tick()
    assert Body.objects.exists()
    clock.shift(timedelta(minutes=5, seconds=1))
    Pulse(heartbeats.worker("maintenance")).beat()
    running.tick()
    assert not Body.objects.exists()
    assert running.rows == 1


def test_with_redis_away_the_clock_runs_them_at_once(running: Clock, valkey: OwnValkey) -> None:
    store_ended(make_device().id)
    valkey.kill()
    assert running.tick()
    assert not Body.objects.exists()
    assert not SweepRun.objects.exclude(queued_at=None).exists()


def test_with_no_worker_alive_the_clock_runs_them_at_once(
    running: Clock, valkey: OwnValkey, clock: DatabaseClock
) -> None:
    store_ended(make_device().id)
    clock.shift(timedelta(seconds=heartbeats.GONE_AFTER + 1))
    assert running.tick()
    assert not Body.objects.exists()
    assert queued(valkey) == 0


def test_a_sweep_of_a_newer_relay_does_no_harm_to_an_older_worker() -> None:
    sweep_slice(name="from_the_future")
    assert not SweepRun.objects.exists()


def test_all_sweeps_in_line_leave_an_event_its_time_to_start() -> None:
    """An event waits behind one job of each sweep, and its job exits 28 s after the claim."""
    assert len(SWEEPS) * SLICE_SECONDS <= 28


def test_a_clock_beats_whether_it_works_or_stands_by(valkey: OwnValkey) -> None:
    first, second = Clock.new(), Clock.new()
    assert first.tick()
    assert not second.tick()
    assert heartbeats.alive(name="tick") == 2
    first.let_go()
    assert heartbeats.alive(name="tick") == 1


def test_old_batches_are_forgotten_done_or_not(clock: DatabaseClock) -> None:
    clock.freeze("2030-01-01T12:00:00Z")
    now = database_clock.read()
    for number, (minutes, done) in enumerate([(10, True), (10, False), (9, True), (9, False)]):
        claimed_at = now - timedelta(minutes=minutes)
        Batch.objects.create(
            shard=number,
            batch_id=f"00000000-0000-0000-0000-00000000000{number}",
            topic="probe",
            count=1,
            claimed_at=claimed_at,
            done_at=claimed_at if done else None,
        )
    assert batches.shards_with_old_batches(now=now) == [0, 1]
    sweep_slice(name="tidy")
    assert sorted(Batch.objects.values_list("shard", flat=True)) == [2, 3]
    assert SweepRun.objects.get(name="tidy").rows == 2
