"""The one port to the job queue: `publish(jobs)` (ADR 0002).

RQ on Redis is a fast way to say "there is work". It may lose, delay or repeat a job at any
time, and its word on a job is never read as truth. A payload holds ids alone.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import django_rq
import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import Queue
from rq.exceptions import DeserializationError
from rq.job import Job as RqJob
from rq.queue import EnqueueData
from rq.serializers import JSONSerializer

from config.kernel.database import assert_no_transaction
from outbox import entries

#: Seconds: statement_timeout < this < lease.
JOB_TIMEOUT = 30
#: Seconds that Redis may keep a job nobody took, and one that failed. Longer than the lease
#: makes no sense: such a job would do nothing.
JOB_TTL, FAILURE_TTL = 90, 600
#: Seconds that Redis may take for one answer.
REDIS_TIMEOUT = 2.0

#: What redis-py raises when Redis is away, full or slow.
QUEUE_ERRORS = (redis.RedisError, OSError)


#: What of a job's row in Redis is read back.
_READ = frozenset(
    b"data origin worker_name description status created_at enqueued_at started_at ended_at "
    b"last_heartbeat".split()
)


class PublishError(Exception):
    """The queue did not take the jobs: away, full or slow. Its text is a class's name."""


@dataclass(frozen=True)
class Job:
    """Something for a worker to do: which entry (outbox.entries), with which argument."""

    id: str
    queue: str
    entry: str
    argument: Any


class EntryJob(RqJob):
    """RQ's job without what RQ would call, send or repeat on the word of its row in Redis.

    That is: callbacks by their names, webhooks, retries, repetitions, and times of its own.
    """

    def restore(self, raw_data: Any) -> None:
        """Take from Redis what a job of ours has."""
        super().restore({name: value for name, value in raw_data.items() if name in _READ})
        self.timeout, self.result_ttl, self.failure_ttl = JOB_TIMEOUT, 0, FAILURE_TTL

    @property
    def is_entry(self) -> bool:
        """It names one of our entries (outbox.entries); any other must not run."""
        try:
            name, instance = self.func_name, self.instance
        except DeserializationError:  # pickled, perhaps
            return False
        return name is not None and instance is None and entries.is_entry(name)


def new_connection(*, timeout: float = REDIS_TIMEOUT) -> redis.Redis:
    """A connection pool to the queue's Redis, with a time limit and no retries of its own.

    redis-py would try three times, seconds apart, and a pipeline that timed out could then
    have been carried out twice. Raises PublishError without REDIS_URL.
    """
    if settings.REDIS_URL is None:
        raise PublishError("NoRedisUrl")
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=timeout,
        socket_connect_timeout=REDIS_TIMEOUT,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
    )


@cache
def connection() -> redis.Redis:
    """The pool that this process publishes on."""
    return new_connection()


def queue(name: str, *, on: redis.Redis) -> Queue:
    """A queue of ours, JSON hard-wired: unpickling what Redis holds would run it."""
    made: Queue = django_rq.get_queue(
        name, connection=on, queue_class=Queue, job_class=EntryJob, serializer=JSONSerializer
    )
    return made


@cache
def _queue(name: str) -> Queue:
    return queue(name, on=connection())


def waiting(name: str) -> int:
    """Jobs of a queue that no worker took yet: a hint for the pace, never a fact.

    Raises PublishError.
    """
    try:
        return int(_queue(name).count)
    except QUEUE_ERRORS as error:
        raise PublishError(type(error).__name__) from error


def eviction_policy() -> str | None:
    """By which policy Redis throws keys away when it is full; None when it throws away none.

    It should refuse writes instead: `noeviction`, an instance of its own (rq#1280, rq#1955).
    None as well when it may not or cannot be asked. Raises PublishError without REDIS_URL.
    """
    try:
        policy = connection().info("memory").get("maxmemory_policy", "noeviction")
    except QUEUE_ERRORS:
        return None
    return None if policy == "noeviction" else str(policy)


def forget_connections() -> None:
    """Connect anew, for tests that move to another Redis."""
    connection.cache_clear()
    _queue.cache_clear()


def publish(jobs: Iterable[Job]) -> None:
    """Hand over all of the jobs or none, in one MULTI/EXEC. Raises PublishError.

    When the answer is lost they may be there all the same; a repeated job finds nothing to do.
    """
    assert_no_transaction()
    by_queue: dict[str, list[EnqueueData]] = defaultdict(list)
    for job in jobs:
        by_queue[job.queue].append(_prepared(job))
    try:
        pipeline = connection().pipeline(transaction=True)
        for name, same in by_queue.items():
            _queue(name).enqueue_many(same, pipeline=pipeline)
        pipeline.execute()
    except QUEUE_ERRORS as error:
        raise PublishError(type(error).__name__) from error


def _prepared(job: Job) -> EnqueueData:
    return Queue.prepare_data(
        job.entry,
        args=[job.argument],
        job_id=job.id,
        timeout=JOB_TIMEOUT,
        ttl=JOB_TTL,
        result_ttl=0,
        failure_ttl=FAILURE_TTL,
        description=job.entry,  # RQ would write the arguments there, and into its log
    )
