"""One device's usage row: the clock, the line and the totals of its queue (DESIGN 4.4, 4.6).

Whoever changes a queue calls `usage_lock` first. Under that lock the caller reads the clock,
takes a place, or gives back what left the queue. As the lock is held until the commit is
visible, the order of commits is the order of `seq`, and a reader that goes on behind the last
`seq` it saw can miss nothing.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from config.kernel import clock, sql
from config.kernel.database import assert_in_transaction
from quotas.models import QueueUsage
from quotas.selectors import Limits


@dataclass(frozen=True)
class Place:
    """A place in a device's line: its number, and the moment of acceptance."""

    seq: int
    accepted_at: datetime


@dataclass(frozen=True)
class Freed:
    """What left one queue in one statement: envelopes, and their bytes."""

    device_id: UUID
    count: int
    bytes: int


def usage_open(*, shard: int, device_id: UUID) -> QueueUsage:
    """The locked row of a device, made when it is new."""
    assert_in_transaction()
    QueueUsage.objects.bulk_create(
        [QueueUsage(shard=shard, device_id=device_id)], ignore_conflicts=True
    )
    usage = usage_lock(shard=shard, device_id=device_id)
    if usage is None:  # removed between the two statements, with the device's last receipt
        return usage_open(shard=shard, device_id=device_id)
    return usage


def usage_lock(*, shard: int, device_id: UUID) -> QueueUsage | None:
    """The locked row of a device, or None for a device that is not known."""
    assert_in_transaction()
    rows = QueueUsage.objects.select_for_update(no_key=True, of=("self",)).filter(
        shard=shard, device_id=device_id
    )
    return next(iter(rows), None)


def usage_lock_all(*, shard: int, device_ids: Iterable[UUID]) -> dict[UUID, QueueUsage]:
    """The locked rows of several devices of one shard, in the one order; unknown ones lack."""
    assert_in_transaction()
    rows = QueueUsage.objects.select_for_update(no_key=True, of=("self",)).filter(
        shard=shard, device_id__in=list(device_ids)
    )
    return {usage.device_id: usage for usage in rows.order_by("device_id")}


def usage_lock_free(*, shard: int, device_ids: Iterable[UUID]) -> list[QueueUsage]:
    """Lock the rows of one shard that nobody else holds just now, in the one order."""
    assert_in_transaction()
    rows = QueueUsage.objects.select_for_update(no_key=True, of=("self",), skip_locked=True)
    return list(rows.filter(shard=shard, device_id__in=list(device_ids)).order_by("device_id"))


def has_room(*, usage: QueueUsage, limits: Limits, sizes: Collection[int]) -> bool:
    """Whether envelopes of these sizes more stay within the limits."""
    return (
        usage.pending_count + len(sizes) <= limits.pending_count
        and usage.pending_bytes + sum(sizes) <= limits.pending_bytes
    )


_TAKE_PLACES = """
UPDATE quotas_queueusage AS usage
   SET pending_count = usage.pending_count + taken.count,
       pending_bytes = usage.pending_bytes + taken.bytes,
       next_seq = usage.next_seq + taken.count,
       last_accepted_us = taken.last_accepted_us
  FROM unnest(%(device_ids)s::uuid[], %(counts)s::bigint[], %(bytes)s::bigint[],
              %(last_accepted_us)s::bigint[])
       AS taken (device_id, count, bytes, last_accepted_us)
 WHERE usage.shard = %(shard)s AND usage.device_id = taken.device_id
"""


@dataclass
class Line:
    """A locked queue while submissions to it are judged, with the places taken so far.

    Time moves on by at least a microsecond from one place to the next, even when the
    database's clock was set back.
    """

    usage: QueueUsage
    count: int = 0
    bytes: int = 0
    last_accepted_us: int = 0

    def has_room(self, *, limits: Limits, size: int) -> bool:
        """Whether one envelope of `size` bytes more stays within the limits."""
        return (
            self.usage.pending_count + self.count + 1 <= limits.pending_count
            and self.usage.pending_bytes + self.bytes + size <= limits.pending_bytes
        )

    def take(self, *, now: datetime, size: int) -> Place:
        """The next place, written by `take_places`.

        `now` is the database's clock, read after the row was locked.
        """
        last = max(self.last_accepted_us, self.usage.last_accepted_us)
        self.last_accepted_us = max(clock.to_microseconds(now), last + 1)
        place = Place(
            seq=self.usage.next_seq + self.count,
            accepted_at=clock.from_microseconds(self.last_accepted_us),
        )
        self.count += 1
        self.bytes += size
        return place


def take_places(*, shard: int, lines: Iterable[Line]) -> None:
    """Count in what was taken in these locked queues of one shard."""
    taken = [line for line in lines if line.count]
    assert_in_transaction()
    if not taken:
        return
    parameters = {
        "shard": shard,
        "device_ids": [line.usage.device_id for line in taken],
        "counts": [line.count for line in taken],
        "bytes": [line.bytes for line in taken],
        "last_accepted_us": [line.last_accepted_us for line in taken],
    }
    sql.execute(_TAKE_PLACES, parameters)


_GIVE_BACK = """
UPDATE quotas_queueusage AS usage
   SET pending_count = usage.pending_count - freed.count,
       pending_bytes = usage.pending_bytes - freed.bytes
  FROM unnest(%(device_ids)s::uuid[], %(counts)s::bigint[], %(bytes)s::bigint[])
       AS freed (device_id, count, bytes)
 WHERE usage.shard = %(shard)s AND usage.device_id = freed.device_id
"""


def give_back(*, shard: int, usages: Iterable[QueueUsage], freed: Iterable[Freed]) -> list[UUID]:
    """Count out what left the queues of one shard, whose rows are locked.

    Returns the devices whose totals would fall below zero: they drifted, are left as they
    are, and the caller recounts them (`set_totals`).
    """
    assert_in_transaction()
    known = {usage.device_id: usage for usage in usages}
    sound: list[Freed] = []
    drifted: list[Freed] = []
    for entry in freed:
        usage = known[entry.device_id]
        fits = usage.pending_count >= entry.count and usage.pending_bytes >= entry.bytes
        (sound if fits else drifted).append(entry)
    if sound:
        parameters = {
            "shard": shard,
            "device_ids": [entry.device_id for entry in sound],
            "counts": [entry.count for entry in sound],
            "bytes": [entry.bytes for entry in sound],
        }
        sql.execute(_GIVE_BACK, parameters)
    return [entry.device_id for entry in drifted]


def set_totals(*, usage: QueueUsage, count: int, size: int) -> None:
    """Replace the totals of a locked row by a recount."""
    _row(usage).update(pending_count=count, pending_bytes=size)


def set_clock(*, usage: QueueUsage, at: datetime) -> None:
    """Replace a locked row's clock, which ran ahead while the server's own was wrong."""
    _row(usage).update(last_accepted_us=clock.to_microseconds(at))


def close(*, usage: QueueUsage, now: datetime) -> None:
    """Refuse new mail from now on; what is pending will be removed."""
    _row(usage).filter(closed_at__isnull=True).update(closed_at=now)


def remove(*, usage: QueueUsage) -> None:
    """Forget a closed queue whose last receipt lapsed."""
    _row(usage).filter(closed_at__isnull=False).delete()


def _row(usage: QueueUsage) -> QuerySet[QueueUsage]:
    assert_in_transaction()
    return QueueUsage.objects.filter(shard=usage.shard, device_id=usage.device_id)
