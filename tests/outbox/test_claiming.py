"""Claiming: what is due, by shard and topic, once, under a lease, and put together well."""

import threading
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection

from config.kernel import clock as database_clock
from config.kernel import sql
from outbox import heartbeats
from outbox.models import Batch, Event, EventState
from outbox.services import claiming, pressure
from outbox.services.batches import ClaimedBatch
from outbox.services.claiming import BATCH_MOST, claim, due_places
from outbox.topics import Topic
from tests.conftest import DatabaseClock
from tests.outbox.conftest import Register
from tests.outbox.kit import PROBE, Effects, add_events, event


@pytest.fixture
def probe(register: Register, effects: Effects) -> Topic:
    return register(effects.all_done)


def ids(batch: ClaimedBatch) -> set[UUID]:
    return {event_id for event_ids in batch.events.values() for event_id in event_ids}


def test_what_is_due_is_published_under_a_lease_of_a_minute(
    probe: Topic, clock: DatabaseClock
) -> None:
    clock.freeze("2030-01-01T12:00:00Z")
    [due] = add_events(1)
    add_events(1, next_at=database_clock.read() + timedelta(microseconds=1))
    [batch] = claim(room={probe: 100})
    assert ids(batch) == {due}
    row = event(due)
    assert (row.state, row.deliveries) == (EventState.PUBLISHED, 1)
    assert row.next_at.isoformat() == batch.lease_end.isoformat() == "2030-01-01T12:01:00+00:00"
    [record] = Batch.objects.all()
    assert (record.batch_id, record.topic, record.count) == (batch.batch_id, PROBE, 1)
    assert (record.claimed_at, record.done_at) == (database_clock.read(), None)


def test_what_is_under_way_is_due_again_when_its_lease_ends(
    probe: Topic, clock: DatabaseClock
) -> None:
    clock.freeze("2030-01-01T12:00:00Z")
    [due] = add_events(1)
    claim(room={probe: 100})
    clock.freeze("2030-01-01T12:00:59.999999Z")
    assert claim(room={probe: 100}) == []
    clock.freeze("2030-01-01T12:01:00Z")
    [again] = claim(room={probe: 100})
    assert ids(again) == {due}
    assert event(due).deliveries == 2


def test_a_batch_holds_several_shards_the_oldest_first(probe: Topic) -> None:
    now = database_clock.read()
    for shard, age in ((3, 10), (7, 30), (5, 20)):
        add_events(2, shard=shard, next_at=now - timedelta(seconds=age))
    [batch] = claim(room={probe: 100})
    assert list(batch.events) == [7, 5, 3]
    assert batch.count == 6
    assert sorted(Batch.objects.values_list("shard", "count")) == [(3, 2), (5, 2), (7, 2)]


def test_a_batch_holds_five_hundred_at_most(probe: Topic) -> None:
    add_events(BATCH_MOST + 1)
    assert sorted(batch.count for batch in claim(room={probe: 2_000})) == [1, 500]


def test_no_more_are_claimed_than_there_is_room_for(probe: Topic) -> None:
    add_events(20, shard=1)
    add_events(20, shard=2)
    assert sum(batch.count for batch in claim(room={probe: 30})) == 30
    assert Event.objects.filter(state=EventState.PUBLISHED).count() == 30
    assert claim(room={probe: 0}) == []


def test_the_limit_holds_under_a_nested_loop(probe: Topic) -> None:
    """Without MATERIALIZED the subselect could run again for each row that is joined."""
    add_events(200, shard=1)
    with connection.cursor() as cursor:
        for method in ("hashjoin", "mergejoin", "material", "hashagg"):
            cursor.execute(f"SET enable_{method} = off")
    claim(room={probe: 1})
    assert Event.objects.filter(state=EventState.PUBLISHED).count() == 1
    connection.close()


def test_events_that_failed_travel_apart_and_suspects_alone(probe: Topic) -> None:
    fresh = set(add_events(3))
    failed = set(add_events(2, failures=1))
    raised = add_events(1, failures=2, starts=1)
    killed = add_events(1, starts=1)
    refused = set(add_events(2, deliveries=5))  # lost jobs are no suspicion
    travelled = sorted((ids(batch) for batch in claim(room={probe: 100})), key=len)
    assert travelled[:2] in ([set(raised), set(killed)], [set(killed), set(raised)])
    assert travelled[2:] == [failed, fresh | refused]


def test_two_dispatchers_at_once_claim_each_event_once(probe: Topic) -> None:
    wanted = set(add_events(400))
    barrier = threading.Barrier(4)
    claimed: list[ClaimedBatch] = []

    def run() -> None:
        barrier.wait()
        for _ in range(6):
            claimed.extend(claim(room={probe: 25}))
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claimed += claim(room={probe: 400})
    found = [event_id for batch in claimed for event_id in ids(batch)]
    assert sorted(found) == sorted(wanted)
    assert set(Event.objects.values_list("deliveries", flat=True)) == {1}


def test_a_claim_waits_for_nobody(probe: Topic) -> None:
    import psycopg

    from tests.conftest import test_database_url

    held, free = add_events(1), add_events(1)
    with psycopg.connect(test_database_url()) as other:
        other.execute("SELECT 1 FROM outbox_event WHERE event_id = %s FOR UPDATE", held)
        [batch] = claim(room={probe: 100})
        assert ids(batch) == set(free)
    [rest] = claim(room={probe: 100})
    assert ids(rest) == set(held)


def test_a_topic_without_room_blocks_no_other(probe: Topic, register: Register) -> None:
    other = register(probe.handler, name="other", queue="maintenance")
    add_events(1_000, shard=1)
    [wanted] = add_events(1, shard=1, topic="other")
    [batch] = claim(room={probe: 0, other: 100})
    assert (batch.topic, batch.queue, ids(batch)) == ("other", "maintenance", {wanted})


def test_events_of_a_topic_that_nobody_here_knows_are_left_for_a_newer_relay(
    probe: Topic,
) -> None:
    [foreign] = add_events(1, topic="from_the_future")
    before = event(foreign).__dict__
    assert claim(room={probe: 100}) == []
    after = event(foreign).__dict__
    assert {**before, "_state": 0} == {**after, "_state": 0}


def test_the_search_for_work_and_the_claim_follow_the_index(probe: Topic) -> None:
    """Under a million due events of another topic neither may read them."""
    add_events(3_000, shard=1, topic="other")
    add_events(3, shard=1)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE outbox_event")
    now = database_clock.read()
    parameters = {"shard": 1, "topic": PROBE, "now": now, "lease_end": now, "most": 10}
    for name in ("due.sql", "claim.sql"):
        statement = sql.load(claiming._SQL / name)
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT TEXT) {statement}", parameters)
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "event_topic_due" in plan
        assert "Seq Scan" not in plan
        assert "Rows Removed by Filter" not in plan


def test_the_oldest_due_place_comes_first_over_all_topics(probe: Topic, register: Register) -> None:
    register(probe.handler, name="other")
    now = database_clock.read()
    add_events(5, shard=2, next_at=now - timedelta(seconds=5))
    add_events(5, shard=9, topic="other", next_at=now - timedelta(seconds=8))
    places = due_places(topics=[PROBE, "other"], now=now)
    assert [(place.shard, place.topic) for place in places] == [(9, "other"), (2, PROBE)]


# --- Back-pressure ---------------------------------------------------------------------------
def record(*, count: int, age: float, topic: str = PROBE, done: bool = False) -> None:
    """A batch that was claimed `age` seconds ago."""
    claimed_at = database_clock.read() - timedelta(seconds=age)
    Batch.objects.create(
        shard=0,
        batch_id=UUID(int=Batch.objects.count() + 1),
        topic=topic,
        count=count,
        claimed_at=claimed_at,
        done_at=claimed_at if done else None,
    )


def test_room_is_two_batches_for_each_live_worker(probe: Topic) -> None:
    assert pressure.room(topics=[probe]) == {probe: 1_000}
    for _ in range(3):
        heartbeats.Pulse(heartbeats.worker("wake")).beat()
    assert pressure.room(topics=[probe]) == {probe: 3_000}
    record(count=2_900, age=10)
    assert pressure.room(topics=[probe]) == {probe: 100}
    record(count=500, age=1)
    assert pressure.room(topics=[probe]) == {probe: 0}


def test_fast_workers_get_a_third_of_what_they_finish_in_a_minute(probe: Topic) -> None:
    record(count=30_000, age=50, done=True)
    record(count=4_000, age=5)
    assert pressure.room(topics=[probe]) == {probe: 6_000}


def test_what_lies_longer_than_a_lease_takes_no_room(probe: Topic) -> None:
    record(count=900, age=61)
    record(count=60_000, age=61, done=True)
    assert pressure.room(topics=[probe]) == {probe: 1_000}


def test_each_topic_has_a_measure_of_its_own(probe: Topic, register: Register) -> None:
    other = register(probe.handler, name="other", queue="maintenance")
    record(count=1_000, age=1)
    assert pressure.room(topics=[probe, other]) == {probe: 0, other: 1_000}
