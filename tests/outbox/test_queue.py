"""Between PostgreSQL and the worker: what Redis learns, what it may do to us, and what not."""

import json
import logging
import pickle
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import redis
from django.core.management import get_commands
from pytest_django import Settings
from rq import Callback, Queue, Retry
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.serializers import DefaultSerializer, JSONSerializer

from config.kernel import clock as database_clock
from config.kernel.database import durable_transaction
from outbox import heartbeats, publishing, topics
from outbox.jobs import HANDLE_BATCH
from outbox.models import Batch, Event, EventState, Heartbeat
from outbox.publishing import Job, PublishError, publish
from outbox.services import dispatching
from outbox.services.dispatching import Dispatcher
from outbox.services.working import Worker
from outbox.topics import EventRef, Settlement
from tests.conftest import DatabaseClock
from tests.outbox.conftest import Register
from tests.outbox.kit import (
    PROBE,
    Effects,
    OwnValkey,
    add_events,
    dispatch,
    event,
    round_trip,
    work,
)

pytestmark = pytest.mark.usefixtures("valkey")
CALLED: list[object] = []


def job_keys(valkey: OwnValkey) -> list[bytes]:
    return [key for key in valkey.client.keys("rq:job:*") if key.count(b":") == 2]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, as it stands in the log."""
    handlers = [each for each in logging.getLogger().handlers if each.formatter is not None]
    [formatter] = {each.formatter for each in handlers if "Processor" in repr(each.formatter)}
    assert formatter is not None
    return [formatter.format(record) for record in caplog.records]


# --- The way there ---------------------------------------------------------------------------
def test_an_event_travels_from_commit_to_handler_and_nothing_of_it_stays(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    wanted = add_events(30)
    assert dispatch().published == 30
    assert set(Event.objects.values_list("state", flat=True)) == {EventState.PUBLISHED}
    assert work().jobs == 1
    assert sorted(effects.events) == sorted(wanted)
    assert not Event.objects.exists()
    assert job_keys(valkey) == []
    assert valkey.client.llen("rq:queue:wake") == 0
    assert valkey.client.llen("rq:queue:wake:intermediate") == 0


def test_redis_learns_ids_and_nothing_else(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    device = uuid4()
    wanted = add_events(3, device_id=device, kind="telling_kind")
    dispatch()
    [key] = job_keys(valkey)
    row = valkey.client.hgetall(key)
    name, instance, [payload], kwargs = json.loads(zlib.decompress(row[b"data"]))
    assert (name, instance, kwargs) == (HANDLE_BATCH, None, {})
    batch = Batch.objects.get()
    shard = event(wanted[0]).shard
    assert payload == {
        "batch_id": str(batch.batch_id),
        "events": [[shard, [str(event_id) for event_id in payload["events"][0][1]]]],
        "lease_end_us": payload["lease_end_us"],
    }
    assert set(payload["events"][0][1]) == set(map(str, wanted))
    assert key == f"rq:job:{batch.batch_id}".encode()
    assert row[b"description"] == HANDLE_BATCH.encode()
    everything = repr(valkey.dump())
    for telling in (str(device), device.hex, "telling_kind", PROBE):
        assert telling not in everything


def test_redis_keeps_no_job_for_long(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    add_events(1)
    dispatch()
    [key] = job_keys(valkey)
    row = valkey.client.hgetall(key)
    assert 0 < valkey.client.ttl(key) <= 90
    assert (row[b"timeout"], row[b"result_ttl"], row[b"failure_ttl"]) == (b"30", b"0", b"600")


def test_a_handler_that_raises_leaves_no_traceback_in_redis(
    register: Register, valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        raise ValueError(f"telling text about {events[0].device_id}")

    register(raises)
    device = uuid4()
    add_events(1, device_id=device)
    round_trip()
    assert Event.objects.get().last_error == "ValueError"
    everything = repr(valkey.dump()) + "".join(lines(caplog))
    assert "outbox.handler_raised" in everything
    for telling in ("telling text", str(device), "Traceback"):
        assert telling not in everything


def test_a_whole_round_is_handed_over_or_none_of_it(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    """MULTI/EXEC over both queues: a refusal in the middle leaves nothing behind."""
    valkey.client.set("rq:queue:maintenance", "not a list")
    jobs = [Job(str(uuid4()), queue, HANDLE_BATCH, {}) for queue in ("wake", "maintenance")]
    valkey.client.config_set("maxmemory", 1)
    with pytest.raises(PublishError, match=r"^\w+$"):
        publish(jobs)
    assert job_keys(valkey) == []
    assert valkey.client.llen("rq:queue:wake") == 0


def test_publishing_refuses_to_run_inside_a_transaction() -> None:
    with durable_transaction(), pytest.raises(RuntimeError):
        publish([])


def test_redis_py_must_not_repeat_what_timed_out(valkey: OwnValkey) -> None:
    assert publishing.connection().connection_pool.connection_kwargs["retry"].get_retries() == 0


# --- Redis is away or full -------------------------------------------------------------------
def test_while_redis_is_away_nothing_is_claimed_and_nothing_counted(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    [wanted] = add_events(1)
    before = event(wanted)
    valkey.kill()
    dispatcher = Dispatcher()
    for _ in range(3):
        assert dispatcher.dispatch_once() == 0
    after = event(wanted)
    assert (after.state, after.failures, after.deliveries) == (EventState.PENDING, 0, 0)
    assert after.next_at == before.next_at
    assert not Batch.objects.exists()
    valkey.start()
    assert dispatcher.dispatch_once() == 1
    work()
    assert effects.events == [wanted]


def test_a_refused_write_is_no_failure_and_is_tried_again_with_less(
    register: Register, effects: Effects, valkey: OwnValkey, clock: DatabaseClock
) -> None:
    register(effects.all_done)
    dispatch()  # the mark is there: only the publish is refused
    add_events(120)
    valkey.client.config_set("maxmemory", 1)
    dispatcher = Dispatcher()
    assert dispatcher.dispatch_once() == 0
    rows = set(Event.objects.values_list("state", "failures", "starts", "last_error"))
    assert rows == {("pending", 0, 0, "QUEUE_AWAY")}
    assert not Batch.objects.exists()
    assert dispatcher.refused == 120
    assert dispatcher.dispatch_once() == 0  # they are due in a second, not at once
    assert dispatcher.refused == 120
    clock.shift(timedelta(seconds=1.1))
    assert dispatcher.dispatch_once() == 0
    assert dispatcher.refused == 170
    valkey.client.config_set("maxmemory", 0)
    clock.shift(timedelta(seconds=4))  # all of them have been due for long enough to be claimed
    assert [dispatcher.dispatch_once(), dispatcher.dispatch_once()] == [50, 70]
    work()
    assert len(effects.events) == 120


def test_while_the_workers_are_busy_events_gather_for_a_second_at_most(
    register: Register, effects: Effects, clock: DatabaseClock
) -> None:
    """A batch of few costs as much as one of many; nothing waits for a worker that is away."""
    register(effects.all_done)
    add_events(3)
    dispatcher = Dispatcher()
    assert dispatcher.dispatch_once() == 3  # nobody was waiting for a worker yet
    add_events(20, next_at=database_clock.read())
    assert dispatcher.dispatch_once() == 0
    clock.shift(timedelta(seconds=1.1))
    assert dispatcher.dispatch_once() == 20
    work()
    add_events(4, next_at=database_clock.read())
    assert dispatcher.dispatch_once() == 4  # the worker is free again
    work()
    assert len(effects.events) == 27


def test_an_outage_is_a_line_when_it_begins_and_one_when_it_ends(
    register: Register, effects: Effects, valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    register(effects.all_done)
    add_events(1)
    valkey.kill()
    dispatcher = Dispatcher()
    with caplog.at_level(logging.DEBUG, "relay"):
        for _ in range(4):
            dispatcher.dispatch_once()
        valkey.start()
        dispatcher.dispatch_once()
        dispatcher.dispatch_once()
    told = [record.message for record in caplog.records if "queue" in record.message]
    assert told == ["outbox.queue_away", "outbox.queue_back"]


def test_an_outage_without_mail_is_over_when_redis_answers(
    valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    valkey.kill()
    dispatcher = Dispatcher()
    with caplog.at_level(logging.DEBUG, "relay"):
        dispatcher.dispatch_once()
        valkey.start()
        dispatcher.dispatch_once()
    told = [record.message for record in caplog.records if "queue" in record.message]
    assert told == ["outbox.queue_away", "outbox.queue_back"]


def test_a_full_redis_is_one_line_however_often_it_refuses(
    register: Register, effects: Effects, valkey: OwnValkey, clock: DatabaseClock,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    register(effects.all_done)
    dispatch()
    add_events(1)
    valkey.client.config_set("maxmemory", 1)
    dispatcher = Dispatcher()
    with caplog.at_level(logging.DEBUG, "relay"):
        for seconds in (0, 2, 4):
            clock.shift(timedelta(seconds=seconds))
            dispatcher.dispatch_once()
            dispatcher.dispatch_once()  # nothing is due, and Redis answers
    assert dispatcher.refused == 3
    assert [record.message for record in caplog.records if "queue" in record.message] == [
        "outbox.queue_away"
    ]


def test_a_redis_that_evicts_is_told_once(
    valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    valkey.client.config_set("maxmemory-policy", "allkeys-lru")
    dispatcher = Dispatcher()
    with caplog.at_level(logging.WARNING, "relay"):
        dispatcher.dispatch_once()
        dispatcher.dispatch_once()
    [line] = [line for line in lines(caplog) if "outbox.queue_evicts" in line]
    assert json.loads(line)["policy"] == "allkeys-lru"


def test_without_a_redis_url_the_events_wait(register: Register, settings: Settings) -> None:
    settings.REDIS_URL = None
    publishing.forget_connections()
    register(lambda events, _: {})
    add_events(1)
    assert dispatch().published == 0
    assert Event.objects.get().state == EventState.PENDING


def test_postgresql_away_is_survived_and_told_once(
    register: Register,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from django.db import OperationalError

    def away(**_: object) -> None:
        raise OperationalError("gone")

    register(effects.all_done)
    add_events(1)
    dispatcher = Dispatcher()
    with caplog.at_level(logging.WARNING, "relay"):
        with monkeypatch.context() as patch:
            patch.setattr(dispatching, "claim", away)
            assert [dispatcher.dispatch_once() for _ in range(3)] == [0, 0, 0]
        assert dispatcher.dispatch_once() == 1
    told = [record.message for record in caplog.records if "storage" in record.message]
    assert told == ["outbox.storage_away", "outbox.storage_back"]


# --- A wiped Redis ---------------------------------------------------------------------------
def test_after_a_wipe_what_was_published_is_due_at_once_and_in_batches(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    wanted = add_events(40)
    dispatch()
    valkey.client.flushall()
    assert dispatch().published == 40
    assert len(job_keys(valkey)) == 1  # no single jobs
    assert work().jobs == 1
    assert sorted(effects.events) == sorted(wanted)


def test_after_a_wipe_a_start_under_way_is_not_held_against_its_event(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    dispatch()
    fresh, poison = add_events(1), add_events(1)
    later = dispatching.heartbeats.clock.read() + timedelta(seconds=50)
    Event.objects.update(state=EventState.PUBLISHED, next_at=later, starts=1)
    Event.objects.filter(event_id__in=poison).update(starts=4)
    valkey.client.flushall()
    dispatch()
    assert (event(fresh[0]).starts, event(poison[0]).starts) == (0, 3)


def test_a_wipe_hurries_nothing_that_waits_for_its_backoff(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    dispatch()
    later = dispatching.heartbeats.clock.read() + timedelta(seconds=50)
    [waiting] = add_events(1, next_at=later, failures=3)
    valkey.client.flushall()
    assert dispatch().published == 0
    assert event(waiting).next_at == later


def test_another_relay_on_the_same_redis_is_no_wipe(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    dispatch()
    [mark] = valkey.client.keys("rq:relay:mark:*")
    assert UUID(mark.decode().rpartition(":")[2])
    valkey.client.set("rq:relay:mark:another", 1)
    add_events(3)
    dispatch()
    assert dispatch().published == 0


def test_the_mark_is_set_after_the_waking(
    register: Register, effects: Effects, valkey: OwnValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher that dies in between leaves the work to the next one."""
    from outbox import sentinel

    register(effects.all_done)
    add_events(1)
    dispatch()
    valkey.client.flushall()

    def dies(topic: str) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sentinel, "_wake_topic", dies)
        with pytest.raises(KeyboardInterrupt):
            dispatch()
    assert dispatch().published == 1


# --- The worker ------------------------------------------------------------------------------
def record_call(argument: object) -> None:
    """A function that nobody marked as an entry."""
    CALLED.append(argument)


def test_a_worker_runs_entries_of_ours_and_nothing_else(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    """Whoever writes to Redis must not run code here, with JSON no more than with pickle."""
    register(effects.all_done)
    mine = f"{__name__}.record_call"
    json_queue = Queue("wake", connection=valkey.client, serializer=JSONSerializer)
    pickled = Queue("wake", connection=valkey.client, serializer=DefaultSerializer)
    json_queue.enqueue(mine, "json")
    json_queue.enqueue("os.system", "touch /tmp/never")
    json_queue.enqueue("outbox.jobs.handle", {})  # importable there, but no entry
    pickled.enqueue(mine, "pickle")
    evil = RqJob.create(record_call, args=["raw"], connection=valkey.client)
    evil.data = pickle.dumps(("os.getcwd", None, (), {}))
    evil.save()
    json_queue.push_job_id(evil.id)
    wanted = add_events(1)
    dispatch()
    assert work().jobs == 1
    assert (CALLED, effects.events) == ([], wanted)
    assert job_keys(valkey) == []
    assert valkey.client.llen("rq:queue:wake:intermediate") == 0


def test_what_a_job_would_call_send_or_repeat_is_not_read(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    wanted = add_events(1)
    dispatch()
    [key] = job_keys(valkey)
    valkey.client.hset(
        key,
        mapping={
            "success_callback_name": f"{__name__}.record_call",
            "failure_callback_name": f"{__name__}.record_call",
            "stopped_callback_name": f"{__name__}.record_call",
            "webhooks": json.dumps([{"url": "http://127.0.0.1:1/", "job_status": "finished"}]),
            "retries_left": 3,
            "repeats_left": 3,
            "timeout": -1,
            "result_ttl": 5000,
        },
    )
    work()
    assert (CALLED, effects.events) == ([], wanted)
    assert job_keys(valkey) == []


def test_an_abandoned_job_calls_nothing_back_either(valkey: OwnValkey) -> None:
    """RQ's maintenance runs the failure callback of a job whose worker died."""
    queue = Queue("wake", connection=valkey.client, serializer=JSONSerializer)
    job = queue.enqueue(
        HANDLE_BATCH, {}, on_failure=Callback(f"{__name__}.record_call"), retry=Retry(max=3)
    )
    valkey.client.lrem("rq:queue:wake", 0, job.id)
    job.set_status(JobStatus.STARTED)
    valkey.client.zadd("rq:wip:wake", {f"{job.id}:{uuid4().hex}": 1})
    work()
    assert CALLED == []
    assert valkey.client.zcard("rq:wip:wake") == 0


def test_nothing_here_speaks_pickle(settings: Settings, valkey: OwnValkey) -> None:
    """`rqworker` takes it whatever the queue says (rq#1357), so there is no such command."""
    assert set(settings.RQ_QUEUES) == set(topics.QUEUES)
    for name, configured in settings.RQ_QUEUES.items():
        assert configured["SERIALIZER"] == "rq.serializers.JSONSerializer"
        made = publishing.queue(name, on=valkey.client)
        assert (made.serializer, made.job_class) == (JSONSerializer, publishing.EntryJob)
        assert type(made) is Queue  # and not one that enqueues when a transaction commits
    assert not [name for name in get_commands() if name.startswith("rq")]


def test_a_payload_that_is_none_of_ours_fails_alone(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    publish([Job(str(uuid4()), "wake", HANDLE_BATCH, {"no": "payload"})])
    wanted = add_events(1)
    dispatch()
    assert work().jobs == 2
    assert effects.events == wanted


def test_a_worker_ends_after_so_many_jobs(register: Register, effects: Effects) -> None:
    register(effects.all_done)
    for _ in range(3):
        add_events(1)
        dispatch()
    worker = Worker("wake", max_jobs=2)
    worker.run()
    assert worker.jobs == 2
    assert len(effects.events) == 2
    assert Event.objects.count() == 1


def test_a_worker_serves_one_queue(register: Register, effects: Effects) -> None:
    register(effects.all_done, queue="maintenance")
    add_events(1)
    dispatch()
    assert work("wake").jobs == 0
    assert work("maintenance").jobs == 1


def test_a_worker_listens_to_no_commands_and_nobody_suspends_it(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    valkey.client.set("rq:suspended", 1)
    wanted = add_events(1)
    round_trip()
    assert effects.events == wanted
    channels = valkey.client.pubsub_channels()
    assert channels == []


def test_a_worker_has_another_name_each_time(valkey: OwnValkey) -> None:
    """A fixed one would be refused after a SIGKILL until its key expires."""
    work()
    work()
    names = {key for key in valkey.client.keys("rq:worker:wake-*") if key.count(b":") == 2}
    assert len(names) == 2


def test_a_worker_waits_two_seconds_at_most_for_redis(
    valkey: OwnValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.kill()
    worker = Worker("wake")
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 5:
            worker.stopping.set()
        return False

    monkeypatch.setattr(worker.stopping, "wait", wait)
    worker.run()
    assert waits == [0.5, 1, 2, 2, 2]


def test_redis_dying_under_a_job_costs_neither_its_effect_nor_its_settlement(
    register: Register, effects: Effects, valkey: OwnValkey
) -> None:
    """The effect happened and PostgreSQL says so, whatever RQ makes of it."""

    def last_act(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        valkey.kill()
        return effects.all_done(events, seconds)

    register(last_act)
    wanted = add_events(2)
    dispatch()
    worker = Worker("wake", max_jobs=1)
    worker.run()
    assert sorted(effects.events) == sorted(wanted)
    assert not Event.objects.exists()


def test_a_job_that_oversleeps_is_interrupted_and_its_connection_is_not_used_again(
    register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection

    def oversleeps(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")
        return {}

    monkeypatch.setattr(publishing, "JOB_TIMEOUT", 1)
    register(oversleeps)
    [wanted] = add_events(1)
    round_trip()
    row = event(wanted)
    assert (row.state, row.failures) == (EventState.PENDING, 1)
    assert row.last_error == "JobTimeoutException"


def test_a_worker_beats_from_its_own_loop_and_leaves_nothing_when_it_ends() -> None:
    worker = work()
    assert heartbeats.alive(name="work wake") == 1
    worker.end()
    assert not Heartbeat.objects.exists()


def test_a_queue_that_cannot_be_cleaned_is_worked_on_all_the_same(
    register: Register, effects: Effects, valkey: OwnValkey, caplog: pytest.LogCaptureFixture
) -> None:
    register(effects.all_done)
    valkey.client.set("rq:failed:wake", "not what RQ's housekeeping expects there")
    wanted = add_events(1)
    round_trip()
    assert effects.events == wanted
    assert "worker.not_cleaned" in "".join(lines(caplog))


def test_redis_errors_of_every_kind_are_known() -> None:
    assert issubclass(redis.exceptions.OutOfMemoryError, publishing.QUEUE_ERRORS)
    assert issubclass(redis.exceptions.TimeoutError, publishing.QUEUE_ERRORS)
