"""Claiming due events, shard by shard (OUTBOX.md, "Claimed").

A claim is a short transaction of its own. After a crash before the publish, a lost job, a
wiped Redis or a dead worker the rows simply become due again; no process's identity matters,
and any number of dispatchers is safe.

How events are put together:

    never failed                 up to 500 a batch, over several shards
    failed by the handler's word as many, but among themselves: their neighbours are no fresh
                                 mail, and a hundred unreachable endpoints still share the
                                 handler's threads instead of waiting for each other
    suspects                     alone: the last start did not end, or the handler raised and
                                 nobody knows over which event

A lost or refused job is no suspicion: a wiped Redis must not turn into single jobs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import uuid_utils.compat

from config.kernel import clock, sql
from config.kernel.shards import all_shards
from outbox.models import Batch
from outbox.services.batches import ClaimedBatch
from outbox.topics import Topic
from outbox.transactions import forgettable_transaction

#: How long a batch may be under way before its events become due again.
LEASE = timedelta(seconds=60)
#: For how long events come together at most while the workers are busy anyway.
GATHERING = timedelta(seconds=1)
#: Events in one job at most.
BATCH_MOST = 500

_SQL = Path(__file__).parent.parent / "sql"


@dataclass(frozen=True)
class Due:
    """Where the oldest due event of a topic is, in one shard."""

    shard: int
    topic: str
    next_at: datetime


def due_places(*, topics: Iterable[str], now: datetime) -> list[Due]:
    """Shards with due events of these topics, the one with the oldest first."""
    names = tuple(topics)
    if not names:
        return []
    parameters: dict[str, Any] = {f"topic_{number}": name for number, name in enumerate(names)}
    statement = _due_statement(len(names), all_shards())
    return [Due(**row) for row in sql.rows(statement, {**parameters, "now": now})]


@cache
def _due_statement(topics: int, shards: range) -> str:
    arm = sql.load(_SQL / "due.sql")
    arms = (
        arm.replace("%(shard)s", str(shard)).replace("%(topic)s", f"%(topic_{number})s")
        for shard in shards
        for number in range(topics)
    )
    return " UNION ALL ".join(arms) + " ORDER BY next_at"


def claim(*, room: Mapping[Topic, int], gather: Collection[str] = ()) -> list[ClaimedBatch]:
    """Claim due events, of each topic as many as there is room for, and batch them.

    Of the topics in `gather`, whose workers are busy, only what has been due for GATHERING: a
    batch costs the same whether it holds ten events or five hundred, and until it would be
    handled more come together.
    The batches' rows commit with the claim, so that there is never one without the other.
    """
    left = {topic.name: most for topic, most in room.items() if most > 0}
    by_name = {topic.name: topic for topic in room}
    now = clock.read()
    places = [
        place
        for place in due_places(topics=left, now=now)
        if place.topic not in gather or place.next_at <= now - GATHERING
    ]
    if not places:
        return []
    with forgettable_transaction():
        now = clock.read()
        packing = _Packing(lease_end=now + LEASE)
        for place in places:
            most = min(BATCH_MOST, left[place.topic])
            if most > 0:
                rows = _claim_place(place, now, most)
                left[place.topic] -= len(rows)
                packing.add(by_name[place.topic], place.shard, rows)
        batches = packing.batches()
        _record(batches, now)
    return batches


def _claim_place(place: Due, now: datetime, most: int) -> list[dict[str, Any]]:
    parameters = {
        "shard": place.shard,
        "topic": place.topic,
        "now": now,
        "lease_end": now + LEASE,
        "most": most,
    }
    return sql.rows(sql.load(_SQL / "claim.sql"), parameters)


@dataclass
class _Packing:
    """Events on their way into batches, in the order of their claim."""

    lease_end: datetime
    together: dict[tuple[Topic, bool], list[tuple[int, UUID]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    alone: list[tuple[Topic, tuple[int, UUID]]] = field(default_factory=list)

    def add(self, topic: Topic, shard: int, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            event = (shard, row["event_id"])
            if row["starts"] > 0:
                self.alone.append((topic, event))
            else:
                self.together[topic, row["failures"] > 0].append(event)

    def batches(self) -> list[ClaimedBatch]:
        made = [
            self._batch(topic, events[start : start + BATCH_MOST])
            for (topic, _), events in self.together.items()
            for start in range(0, len(events), BATCH_MOST)
        ]
        return made + [self._batch(topic, [event]) for topic, event in self.alone]

    def _batch(self, topic: Topic, events: Iterable[tuple[int, UUID]]) -> ClaimedBatch:
        by_shard: dict[int, list[UUID]] = defaultdict(list)
        for shard, event_id in events:
            by_shard[shard].append(event_id)
        return ClaimedBatch(
            batch_id=uuid_utils.compat.uuid7(),
            events=by_shard,
            lease_end=self.lease_end,
            topic=topic.name,
            queue=topic.queue,
        )


def _record(batches: Iterable[ClaimedBatch], now: datetime) -> None:
    rows: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        for shard, event_ids in batch.events.items():
            rows[shard].append(
                Batch(
                    shard=shard,
                    batch_id=batch.batch_id,
                    topic=batch.topic,
                    count=len(event_ids),
                    claimed_at=now,
                )
            )
    for shard in sorted(rows):
        Batch.objects.bulk_create(rows[shard])
