"""Batches: what travels from the dispatcher to a worker, and the rows that tell of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from config.kernel import clock, sql
from config.kernel.database import assert_in_transaction
from config.kernel.shards import shards_where
from outbox.models import Batch

#: Rows of batches are kept so long after their claim. Back-pressure looks at the last minute,
#: and a job that Redis kept for longer than its lease does nothing anyway.
KEPT = timedelta(minutes=10)

_PRUNE = Path(__file__).parent.parent / "sql" / "prune_batches.sql"


@dataclass(frozen=True)
class Delivery:
    """The whole payload of a job: which events, and when their lease ends."""

    batch_id: UUID
    events: Mapping[int, Sequence[UUID]]  # by shard, the one with the oldest due event first
    lease_end: datetime

    @property
    def count(self) -> int:
        """Events in it."""
        return sum(len(event_ids) for event_ids in self.events.values())

    def payload(self) -> dict[str, Any]:
        """For JSON: ids only, so that Redis learns nothing."""
        return {
            "batch_id": str(self.batch_id),
            "events": [
                [shard, [str(event_id) for event_id in event_ids]]
                for shard, event_ids in self.events.items()
            ],
            "lease_end_us": clock.to_microseconds(self.lease_end),
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "Delivery":
        """The inverse of `payload`. Raises KeyError, TypeError or ValueError for another's."""
        return Delivery(
            batch_id=UUID(payload["batch_id"]),
            events={
                int(shard): [UUID(event_id) for event_id in event_ids]
                for shard, event_ids in payload["events"]
            },
            lease_end=clock.from_microseconds(int(payload["lease_end_us"])),
        )


@dataclass(frozen=True)
class ClaimedBatch(Delivery):
    """A delivery that is to be published. What the worker needs to know besides is in its row."""

    topic: str
    queue: str


def topic_of(delivery: Delivery) -> str | None:
    """The topic of a batch; None when it was put back, or is so old that its row is gone."""
    for shard in delivery.events:
        rows = Batch.objects.filter(shard=shard, batch_id=delivery.batch_id)
        return rows.values_list("topic", flat=True).first()
    return None


def shards_with_old_batches(*, now: datetime) -> list[int]:
    """Where there is something to prune."""
    return shards_where(Batch.objects.filter(claimed_at__lte=now - KEPT))


def batches_prune(*, shard: int, now: datetime, most: int) -> int:
    """Delete up to `most` old batches of one shard, done or not; returns how many."""
    assert_in_transaction()
    parameters = {"shard": shard, "before": now - KEPT, "most": most}
    return sql.execute(sql.load(_PRUNE), parameters)
