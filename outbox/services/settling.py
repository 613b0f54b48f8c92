"""Settling events: done, failed, later, or put back (OUTBOX.md, "Handled", "Poison").

Each shard is settled by statements of its own, all in one transaction with the closing of the
batch: exactly the listed ids are deleted or given their next time. Never `id <= max`: a lower
id can commit later.
"""

import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.db.models import QuerySet

from config.kernel import clock, sql
from config.kernel.database import durable_transaction
from outbox.models import Batch, EventState
from outbox.services.batches import Delivery
from outbox.topics import Disposition, EventRef, Settlement

#: Dead after so many failures.
FAILURES_MOST = 8
#: When an event is tried again that its handler had no time for.
LATER = timedelta(seconds=1)
#: How long events that nobody here can handle are left for a newer version of the relay.
UNKNOWN_WAIT = timedelta(seconds=30)
LONGEST_BACKOFF = timedelta(hours=1)

_SQL = Path(__file__).parent.parent / "sql"
_NOT_MENTIONED = Settlement(Disposition.LATER)
_LONGEST_CODE = 64


@dataclass(frozen=True)
class Settled:
    """What became of a batch, in events."""

    done: int = 0
    failed: int = 0
    later: int = 0
    dead: int = 0


@dataclass(frozen=True)
class _Aside:
    """What an event that is not done becomes."""

    event_id: UUID
    state: EventState
    failures: int
    starts: int
    next_at: datetime
    code: str


def backoff(failures: int) -> timedelta:
    """2ⁿ seconds after the n-th failure, with up to half of it more, an hour at most."""
    seconds = 2**failures * (1 + secrets.randbelow(500) / 1000)
    return timedelta(seconds=min(seconds, LONGEST_BACKOFF.total_seconds()))


def settle(
    delivery: Delivery,
    events: Sequence[EventRef],
    said: Mapping[UUID, Settlement],
    *,
    raised: bool = False,
) -> Settled:
    """Carry out what the handler said of each event, and close the batch.

    With `raised` the handler did not come to its end, and every event stays a suspect until it
    has been handled alone.
    """
    totals: Counter[str] = Counter()
    by_shard: dict[int, list[EventRef]] = defaultdict(list)
    for event in events:
        by_shard[event.shard].append(event)
    with durable_transaction():
        now = clock.read()
        for shard in sorted(by_shard):
            done: list[UUID] = []
            aside: list[_Aside] = []
            for event in by_shard[shard]:
                word = said.get(event.event_id, _NOT_MENTIONED)
                totals[word.disposition] += 1
                if word.disposition is Disposition.DONE:
                    done.append(event.event_id)
                else:
                    aside.append(_aside(event, word, now, raised))
            totals["dead"] += sum(each.state is EventState.DEAD for each in aside)
            _finish(shard, done)
            _set_aside(shard, delivery.lease_end, aside)
        for row in _batch_rows(delivery):
            row.update(done_at=now)
    return Settled(**totals)


def leave_for_newer(delivery: Delivery, *, known_versions: Iterable[int]) -> None:
    """Put back the events of a batch whose schema version is not known here; the others stay."""
    with durable_transaction():
        _put_back(delivery, UNKNOWN_WAIT, "UNKNOWN_VERSION", list(known_versions))


def claim_undo(delivery: Delivery, *, after: timedelta, code: str) -> None:
    """The queue did not take the batch, or the worker does not know its topic: as if it had
    never been claimed, but not at once."""
    with durable_transaction():
        _put_back(delivery, after, code, [])
        for row in _batch_rows(delivery):
            row.delete()


def _put_back(delivery: Delivery, after: timedelta, code: str, but_versions: list[int]) -> None:
    now = clock.read()
    for shard in sorted(delivery.events):
        parameters = {
            "shard": shard,
            "event_ids": list(delivery.events[shard]),
            "lease_end": delivery.lease_end,
            "next_at": now + after,
            "code": code,
            "but_versions": but_versions,
        }
        sql.execute(sql.load(_SQL / "put_back.sql"), parameters)


def _finish(shard: int, done: Sequence[UUID]) -> None:
    if done:
        sql.execute(sql.load(_SQL / "finish.sql"), {"shard": shard, "event_ids": sorted(done)})


def _aside(event: EventRef, word: Settlement, now: datetime, raised: bool) -> _Aside:
    failed = word.disposition is Disposition.FAILED
    failures = event.failures + (1 if failed else 0)
    if failed:
        after = backoff(failures)
    else:
        after = LATER if word.after_seconds is None else timedelta(seconds=word.after_seconds)
    is_dead = failed and failures >= FAILURES_MOST
    return _Aside(
        event_id=event.event_id,
        state=EventState.DEAD if is_dead else EventState.PENDING,
        failures=failures,
        starts=1 if raised else 0,
        next_at=now + after,
        code=word.code[:_LONGEST_CODE],
    )


def _set_aside(shard: int, lease_end: datetime, aside: Sequence[_Aside]) -> None:
    if not aside:
        return
    parameters = {
        "shard": shard,
        "lease_end": lease_end,
        "event_ids": [each.event_id for each in aside],
        "states": [str(each.state) for each in aside],
        "failures": [each.failures for each in aside],
        "starts": [each.starts for each in aside],
        "next_ats": [each.next_at for each in aside],
        "codes": [each.code for each in aside],
    }
    sql.execute(sql.load(_SQL / "set_aside.sql"), parameters)


def _batch_rows(delivery: Delivery) -> Iterator[QuerySet[Batch]]:
    for shard in sorted(delivery.events):
        yield Batch.objects.filter(shard=shard, batch_id=delivery.batch_id)
