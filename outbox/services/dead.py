"""Dead letters: events that failed too often, until somebody decides (OUTBOX.md, point 7)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from config.kernel import clock
from config.kernel.database import assert_in_transaction
from outbox.models import Event, EventState


@dataclass(frozen=True)
class DeadLetter:
    """A dead event as an admin sees it: no device."""

    shard: int
    event_id: UUID
    topic: str
    failures: int
    starts: int
    last_error: str
    created_at: datetime


def dead_letters(*, most: int) -> list[DeadLetter]:
    """The oldest dead events."""
    rows = Event.objects.filter(state=EventState.DEAD).order_by("created_at")[:most]
    return [
        DeadLetter(
            shard=row.shard,
            event_id=row.event_id,
            topic=row.topic,
            failures=row.failures,
            starts=row.starts,
            last_error=row.last_error,
            created_at=row.created_at,
        )
        for row in rows
    ]


def requeue(*, letters: Sequence[DeadLetter]) -> int:
    """Make dead events due again, as if they had never failed; inside the caller's transaction."""
    assert_in_transaction()
    now = clock.read()
    changed = 0
    for shard, event_ids in _by_shard(letters):
        dead = Event.objects.filter(shard=shard, event_id__in=event_ids, state=EventState.DEAD)
        changed += dead.update(
            state=EventState.PENDING, failures=0, starts=0, last_error="", next_at=now
        )
    return changed


def discard(*, letters: Sequence[DeadLetter]) -> int:
    """Delete dead events; inside the caller's transaction."""
    assert_in_transaction()
    removed = 0
    for shard, event_ids in _by_shard(letters):
        dead = Event.objects.filter(shard=shard, event_id__in=event_ids, state=EventState.DEAD)
        removed += dead.delete()[0]
    return removed


def _by_shard(letters: Sequence[DeadLetter]) -> list[tuple[int, list[UUID]]]:
    shards = sorted({letter.shard for letter in letters})
    return [
        (shard, sorted(letter.event_id for letter in letters if letter.shard == shard))
        for shard in shards
    ]
