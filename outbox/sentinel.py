"""Noticing that Redis was wiped (OUTBOX.md, point 9).

A key in Redis holds the mark that a row in PostgreSQL holds too. When it is gone or another,
the jobs went with it: events that count as published become due now, in batches, and are out
again within seconds instead of at the end of their lease.
"""

from uuid import uuid4

import redis

from config.kernel import clock
from outbox import publishing
from outbox.models import Event, EventState, QueueMark
from config.kernel.database import durable_transaction

_KEY = "relay:outbox:mark"
_BATCH = 500


def look() -> int:
    """Compare the marks; returns how many events were made due because Redis was wiped."""
    mark = _mark()
    try:
        held = publishing.connection().get(_KEY)
        if held == mark.encode():
            return 0
        woken = _wake_published()
        publishing.connection().set(_KEY, mark)
    except (redis.RedisError, OSError, publishing.PublishError):
        return 0  # away: the publish will say so, and the next round looks again
    return woken


def _mark() -> str:
    row, _ = QueueMark.objects.get_or_create(id=1, defaults={"mark": uuid4()})
    return str(row.mark)


def _wake_published() -> int:
    woken = 0
    shards = Event.objects.filter(state=EventState.PUBLISHED).order_by("shard")
    for shard in list(shards.values_list("shard", flat=True).distinct()):
        while ended := _wake_some(shard):
            woken += ended
    return woken


def _wake_some(shard: int) -> int:
    with durable_transaction():
        now = clock.read()
        rows = Event.objects.select_for_update(no_key=True, skip_locked=True, of=("self",))
        waiting = rows.filter(shard=shard, state=EventState.PUBLISHED, next_at__gt=now)
        ids = [row.event_id for row in waiting.order_by("next_at", "event_id")[:_BATCH]]
        return Event.objects.filter(shard=shard, event_id__in=ids).update(
            state=EventState.PENDING, next_at=now
        )
