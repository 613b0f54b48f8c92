"""Dead letters: events that failed too often, until somebody decides (OUTBOX.md, point 7).

What is done with them is looked at first: a preview, and what follows it, choose by the same
filter. Both run inside the caller's transaction, beside the entry in the audit log.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from config.kernel import clock
from config.kernel.database import assert_in_transaction
from config.kernel.shards import shards_where
from outbox.models import Event, EventState


@dataclass(frozen=True)
class Chosen:
    """Which dead events: one by its id, or all of a topic."""

    event_id: UUID | None = None
    topic: str | None = None

    def __post_init__(self) -> None:
        if (self.event_id is None) == (self.topic is None):
            raise ValueError("either one event or a topic")

    def rows(self) -> QuerySet[Event]:
        """The dead events, whatever their shard."""
        dead = Event.objects.filter(state=EventState.DEAD)
        if self.event_id is not None:
            return dead.filter(event_id=self.event_id)
        return dead.filter(topic=self.topic)

    def shards(self) -> list[int]:
        """Where they are, in the order of the locks."""
        return shards_where(self.rows())


@dataclass(frozen=True)
class DeadLetter:
    """A dead event as an admin sees it: no device."""

    event_id: UUID
    topic: str
    kind: str
    failures: int
    starts: int
    last_error: str
    created_at: datetime


def dead_letters(*, chosen: Chosen, most: int) -> list[DeadLetter]:
    """The oldest of them."""
    return [
        DeadLetter(
            event_id=row.event_id,
            topic=row.topic,
            kind=row.kind,
            failures=row.failures,
            starts=row.starts,
            last_error=row.last_error,
            created_at=row.created_at,
        )
        for row in chosen.rows().order_by("created_at")[:most]
    ]


def dead_count(*, chosen: Chosen) -> int:
    """How many they are."""
    return chosen.rows().count()


def dead_requeue(*, chosen: Chosen) -> int:
    """Make dead events due again, as if they had never failed; returns how many."""
    assert_in_transaction()
    now = clock.read()
    return sum(
        chosen.rows()
        .filter(shard=shard)
        .update(state=EventState.PENDING, failures=0, starts=0, last_error="", next_at=now)
        for shard in chosen.shards()
    )


def dead_discard(*, chosen: Chosen) -> int:
    """Delete dead events; returns how many."""
    assert_in_transaction()
    return sum(chosen.rows().filter(shard=shard).delete()[0] for shard in chosen.shards())
