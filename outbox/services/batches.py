"""What travels from the dispatcher to a worker: ids, and when their lease ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from config.kernel import clock


@dataclass(frozen=True)
class ClaimedBatch:
    """Events of one topic, claimed together: a job's whole payload."""

    batch_id: UUID
    topic: str
    queue: str
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
            "topic": self.topic,
            "queue": self.queue,
            "events": [
                [shard, [str(event_id) for event_id in event_ids]]
                for shard, event_ids in self.events.items()
            ],
            "lease_end_us": clock.to_microseconds(self.lease_end),
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Self:
        """The inverse of `payload`. Raises KeyError, TypeError or ValueError for another's."""
        return cls(
            batch_id=UUID(payload["batch_id"]),
            topic=str(payload["topic"]),
            queue=str(payload["queue"]),
            events={
                int(shard): [UUID(event_id) for event_id in event_ids]
                for shard, event_ids in payload["events"]
            },
            lease_end=clock.from_microseconds(int(payload["lease_end_us"])),
        )
