"""Noticing that Redis was wiped (OUTBOX.md, point 9).

A key in Redis, named by a mark that a row in PostgreSQL holds, says that Redis is the one that
we published to. When it is not there, the jobs went with it: events that count as published
become due now, and are out again within seconds instead of at the end of their lease.

The key carries RQ's prefix, so a move to another prefix is noticed like a move to another
Redis. As its name holds the mark, two relays on one Redis do not take each other's for a wipe.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from uuid import UUID, uuid4

from rq.defaults import RQ_KEY_PREFIX

from config.kernel import clock, sql
from config.kernel.database import durable_transaction
from config.kernel.shards import all_shards
from outbox import publishing
from outbox.models import QueueMark
from outbox.publishing import QUEUE_ERRORS, PublishError

_WAKE = Path(__file__).parent / "sql" / "wake_published.sql"
_MOST = 1_000


def look(*, topics: Iterable[str]) -> int:
    """Look for the mark; returns how many events were made due because it was gone.

    It is set only after that: a process that dies in between leaves the work to the next
    look. Raises PublishError when Redis is away or takes nothing.
    """
    try:
        held = publishing.connection().exists(_key())
    except QUEUE_ERRORS as error:
        raise PublishError(type(error).__name__) from error
    if held:
        return 0
    woken = sum(_wake_topic(topic) for topic in topics)
    try:
        publishing.connection().set(_key(), 1)
    except QUEUE_ERRORS as error:
        raise PublishError(type(error).__name__) from error
    return woken


def _key() -> str:
    return f"{RQ_KEY_PREFIX}:relay:mark:{_mark()}"


@cache
def _mark() -> UUID:
    row, _ = QueueMark.objects.get_or_create(id=1, defaults={"mark": uuid4()})
    return row.mark


def forget_mark() -> None:
    """Read the mark anew, for tests that begin with another database."""
    _mark.cache_clear()


def _wake_topic(topic: str) -> int:
    woken = 0
    for shard in all_shards():
        while ended := _wake_some(shard, topic):
            woken += ended
    return woken


def _wake_some(shard: int, topic: str) -> int:
    with durable_transaction():
        parameters = {"shard": shard, "topic": topic, "now": clock.read(), "most": _MOST}
        return sql.execute(sql.load(_WAKE), parameters)
