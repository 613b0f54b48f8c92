"""The one port to the job queue: `publish(batches)` (ADR 0002).

RQ on Redis is a fast way to say "there is work". It may lose, delay or repeat a job at any
time, and its word on a job is never read as truth. A payload holds ids alone.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import redis
from django.conf import settings
from rq import Queue
from rq.serializers import JSONSerializer

from config.kernel.database import assert_no_transaction
from outbox.services.batches import ClaimedBatch

JOB = "outbox.jobs.handle_batch"
#: Seconds: statement_timeout < this < lease.
JOB_TIMEOUT = 30
#: Seconds that Redis may keep a job nobody took, and a failed one.
JOB_TTL, FAILURE_TTL = 120, 600
REDIS_TIMEOUT = 2.0


class PublishError(Exception):
    """The queue did not take the batches: away, full or slow."""


@cache
def connection() -> redis.Redis:
    """The queue's Redis, with time limits."""
    if settings.REDIS_URL is None:
        raise PublishError("REDIS_URL is not set")
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=REDIS_TIMEOUT,
        socket_connect_timeout=REDIS_TIMEOUT,
        socket_keepalive=True,
    )


def queue(name: str) -> Queue:
    """A queue of ours, JSON hard-wired: whoever writes Redis must not run code here."""
    return Queue(name, connection=connection(), serializer=JSONSerializer)


def publish(batches: Iterable[ClaimedBatch]) -> None:
    """Hand the batches to their queues, one job each. Raises PublishError."""
    assert_no_transaction()
    by_queue: dict[str, list[ClaimedBatch]] = defaultdict(list)
    for batch in batches:
        by_queue[batch.queue].append(batch)
    try:
        for name, same in by_queue.items():
            queue(name).enqueue_many([_job(batch) for batch in same])
    except (redis.RedisError, OSError) as error:
        raise PublishError(type(error).__name__) from error


def _job(batch: ClaimedBatch):  # type: ignore[no-untyped-def]
    return Queue.prepare_data(
        JOB,
        args=[batch.payload()],
        job_id=str(batch.batch_id),
        timeout=JOB_TIMEOUT,
        ttl=JOB_TTL,
        result_ttl=0,
        failure_ttl=FAILURE_TTL,
        description="a batch of events",  # RQ would write the arguments into Redis and its log
    )
