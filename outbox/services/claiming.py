"""Claiming due events, shard by shard (OUTBOX.md, "Claimed").

A claim is a short transaction of its own. After a crash before the publish, a lost job, a
wiped Redis or a dead worker the rows simply become due again; no process's identity matters,
and any number of dispatchers is safe.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import uuid_utils.compat
from django.db.models import Min

from config.kernel import clock, sql
from config.kernel.database import durable_transaction
from outbox import topics
from outbox.models import Batch, Event, EventState
from outbox.services.batches import ClaimedBatch

#: How long a batch may be under way before its events become due again.
LEASE = timedelta(seconds=60)
#: Events in one job at most.
BATCH_MOST = 500
#: How long events that nobody here knows are left for a newer version of the relay.
UNKNOWN_WAIT = timedelta(seconds=30)

_CLAIM = Path(__file__).parent.parent / "sql" / "claim.sql"


@dataclass(frozen=True)
class _Claimed:
    shard: int
    event_id: UUID
    topic: str
    suspect: bool


def shards_due(now: datetime) -> list[int]:
    """Shards with due events, the one with the oldest first."""
    due = Event.objects.exclude(state=EventState.DEAD).filter(next_at__lte=now)
    oldest = due.values("shard").annotate(oldest=Min("next_at")).order_by("oldest")
    return [row["shard"] for row in oldest]


def claim(*, most: int) -> list[ClaimedBatch]:
    """Claim up to `most` due events and put them together as batches.

    An event that failed before, or whose last start did not end, travels alone, so that its
    neighbours finish. A lost or refused job is no suspicion.
    """
    claimed: list[_Claimed] = []
    lease_end = clock.read() + LEASE
    for shard in shards_due(clock.read()):
        if len(claimed) >= most:
            break
        claimed += _claim_shard(shard, min(BATCH_MOST, most - len(claimed)))
    batches = _together(claimed, lease_end)
    _record(batches)
    return batches


def _claim_shard(shard: int, most: int) -> list[_Claimed]:
    with durable_transaction():
        now = clock.read()
        parameters = {"shard": shard, "now": now, "lease_end": now + LEASE, "most": most}
        rows = sql.rows(sql.load(_CLAIM), parameters)
    return [
        _Claimed(shard, row["event_id"], row["topic"], row["failures"] > 0 or row["starts"] > 0)
        for row in rows
    ]


def _together(claimed: Iterable[_Claimed], lease_end: datetime) -> list[ClaimedBatch]:
    batches: list[ClaimedBatch] = []
    by_topic: dict[str, list[_Claimed]] = defaultdict(list)
    for event in claimed:
        if event.suspect:
            batches.append(_batch(event.topic, [event], lease_end))
        else:
            by_topic[event.topic].append(event)
    for topic, events in by_topic.items():
        for start in range(0, len(events), BATCH_MOST):
            batches.append(_batch(topic, events[start : start + BATCH_MOST], lease_end))
    return batches


def _batch(topic: str, events: Iterable[_Claimed], lease_end: datetime) -> ClaimedBatch:
    by_shard: dict[int, list[UUID]] = defaultdict(list)
    for event in events:
        by_shard[event.shard].append(event.event_id)
    known = topics.find(topic)
    return ClaimedBatch(
        batch_id=uuid_utils.compat.uuid7(),
        topic=topic,
        queue=known.queue if known else "",
        events=by_shard,
        lease_end=lease_end,
    )


def _record(batches: Iterable[ClaimedBatch]) -> None:
    """One row a batch and shard: what was claimed, and later that it was done."""
    rows: dict[int, list[Batch]] = defaultdict(list)
    now = clock.read()
    for batch in batches:
        for shard, event_ids in batch.events.items():
            row = Batch(
                shard=shard,
                batch_id=batch.batch_id,
                topic=batch.topic,
                count=len(event_ids),
                claimed_at=now,
            )
            rows[shard].append(row)
    for shard in sorted(rows):
        Batch.objects.bulk_create(rows[shard])
