"""Settling events: done, failed, later, or put back (OUTBOX.md, "Handled", "Poison").

Each shard is settled by statements of its own, in one transaction: exactly the listed ids are
deleted or given their next time, and the batch is closed. Never `id <= max`: a lower id can
commit later.
"""

import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F, QuerySet

from config.kernel import clock
from config.kernel.database import durable_transaction
from outbox.models import Batch, Event, EventState
from outbox.services.batches import ClaimedBatch
from outbox.topics import Disposition, Settlement

#: Dead after so many failures, or so many starts that never came to an end.
FAILURES_MOST, STARTS_MOST = 8, 5
#: When an event is tried again that its handler had no time for.
LATER = timedelta(seconds=1)
_LONGEST_BACKOFF = timedelta(hours=1)
_NOT_MENTIONED = Settlement(Disposition.LATER)


@dataclass(frozen=True)
class Settled:
    """What became of a batch, in events."""

    done: int
    failed: int
    later: int
    dead: int


def backoff(failures: int) -> timedelta:
    """2ⁿ seconds after the n-th failure, with up to half of it more, an hour at most."""
    base = min(timedelta(seconds=2**failures), _LONGEST_BACKOFF)
    return min(base + base * secrets.randbelow(500) / 1000, _LONGEST_BACKOFF)


def settle(batch: ClaimedBatch, said: Mapping[UUID, Settlement]) -> Settled:
    """Carry out what the handler said of each event, and close the batch."""
    totals: dict[Disposition | str, int] = defaultdict(int)
    for shard, event_ids in batch.events.items():
        with durable_transaction():
            now = clock.read()
            for key, count in _settle_shard(shard, event_ids, said, now).items():
                totals[key] += count
            Batch.objects.filter(shard=shard, batch_id=batch.batch_id).update(done_at=now)
    return Settled(
        done=totals[Disposition.DONE],
        failed=totals[Disposition.FAILED],
        later=totals[Disposition.LATER],
        dead=totals["dead"],
    )


def put_back(batch: ClaimedBatch, *, after: timedelta) -> None:
    """Undo a claim that came to nothing, without a failure: Redis was away, a version unknown."""
    for shard, event_ids in batch.events.items():
        with durable_transaction():
            now = clock.read()
            _published(shard, event_ids).update(
                state=EventState.PENDING, next_at=now + after, starts=0
            )
            Batch.objects.filter(shard=shard, batch_id=batch.batch_id).update(done_at=now)


def _settle_shard(
    shard: int, event_ids: Sequence[UUID], said: Mapping[UUID, Settlement], now: datetime
) -> dict[Disposition | str, int]:
    by_word: dict[Settlement, list[UUID]] = defaultdict(list)
    for event_id in event_ids:
        by_word[said.get(event_id, _NOT_MENTIONED)].append(event_id)
    counts: dict[Disposition | str, int] = defaultdict(int)
    for word, ids in by_word.items():
        counts[word.disposition] += len(ids)
        match word.disposition:
            case Disposition.DONE:
                Event.objects.filter(shard=shard, event_id__in=sorted(ids)).delete()
            case Disposition.LATER:
                _later(shard, ids, word, now)
            case Disposition.FAILED:
                counts["dead"] += _failed(shard, ids, word, now)
    return counts


def _later(shard: int, ids: Sequence[UUID], word: Settlement, now: datetime) -> None:
    after = LATER if word.after_seconds is None else timedelta(seconds=word.after_seconds)
    _published(shard, ids).update(
        state=EventState.PENDING, next_at=now + after, starts=0, last_error=word.code
    )


def _failed(shard: int, ids: Sequence[UUID], word: Settlement, now: datetime) -> int:
    """Count a failure each; returns how many died of it."""
    rows = _published(shard, ids).select_for_update(no_key=True, of=("self",))
    by_failures: dict[int, list[UUID]] = defaultdict(list)
    for event in rows.order_by("event_id"):
        by_failures[event.failures + 1].append(event.event_id)
    died = 0
    for failures, same in by_failures.items():
        is_dead = failures >= FAILURES_MOST
        died += len(same) if is_dead else 0
        _published(shard, same).update(
            state=EventState.DEAD if is_dead else EventState.PENDING,
            failures=failures,
            starts=0,
            last_error=word.code,
            next_at=now + backoff(failures),
        )
    return died


def start(batch: ClaimedBatch) -> None:
    """Stamp every event of the batch before its effects: a start that never ends shows."""
    for shard, event_ids in batch.events.items():
        with durable_transaction():
            _published(shard, event_ids).update(starts=F("starts") + 1)


def bury_endless(batch: ClaimedBatch) -> Iterable[UUID]:
    """Events of the batch that started too often without an end: they die now."""
    buried: list[UUID] = []
    for shard, event_ids in batch.events.items():
        with durable_transaction():
            endless = _published(shard, event_ids).filter(starts__gte=STARTS_MOST)
            ids = list(endless.values_list("event_id", flat=True))
            if ids:
                _published(shard, ids).update(state=EventState.DEAD, last_error="NO_END")
            buried += ids
    return buried


def _published(shard: int, event_ids: Sequence[UUID]) -> QuerySet[Event]:
    return Event.objects.filter(
        shard=shard, event_id__in=sorted(event_ids), state=EventState.PUBLISHED
    )
