"""What every row's end is: the sweeps (DESIGN rules 4.2 and 4.3, issue "main job").

    expire    pending envelopes whose time is up → expired; quota given back
    empty     pending envelopes of closed queues → purged; a closed queue without receipts goes
    clean     ciphertext of envelopes that ended → removed; the row stays as the receipt
    lapse     receipts whose time is up → gone
    prune     idempotency records whose time is up → gone
    tidy      rows of the outbox's batches whose work is long over → gone

Each follows the index of what is due, never the queues. A batch is one short transaction in
one shard, ordered, and skips what others hold; so several sweeps at once are safe, and one
that is killed leaves nothing half done.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

from django.db.models import Exists, OuterRef

from config.kernel import clock, sql
from config.kernel.database import durable_transaction
from config.kernel.shards import shards_where
from idempotency import services as idempotency
from outbox.services import batches
from quotas import usage as queue
from quotas.models import QueueUsage
from relay.expiry import due_at
from relay.models import Device, Envelope, Outcome
from relay.services.expiry import expire_due, purge_closed

_SQL = Path(__file__).parent.parent / "sql"


@dataclass(frozen=True)
class Sweep:
    """One kind of sweep: where there is work, and one batch of it.

    `batch(shard, now, most)` runs inside a transaction and returns how many rows it ended;
    0 says that nothing is due in that shard, or that others hold what is.
    """

    name: str
    shards_due: Callable[[datetime], list[int]]
    batch: Callable[[int, datetime, int], int]

    def run_batch(self, *, shard: int, most: int) -> int:
        """One batch in a transaction of its own, on the clock of its beginning."""
        with durable_transaction():
            return self.batch(shard, clock.read(), most)


def _expire_shards(now: datetime) -> list[int]:
    return shards_where(Envelope.objects.filter(due_at(now)))


def _expire(shard: int, now: datetime, most: int) -> int:
    due = Envelope.objects.filter(due_at(now), shard=shard).order_by("expires_at")
    device_ids: set[UUID] = set(due.values_list("device_id", flat=True)[:most])
    usages = queue.usage_lock_free(shard=shard, device_ids=device_ids)
    return expire_due(shard=shard, usages=usages, now=now, most=most) if usages else 0


_PENDING_HERE = Envelope.objects.filter(
    shard=OuterRef("shard"), device_id=OuterRef("device_id"), outcome=Outcome.PENDING
)
_ANYTHING_HERE = Envelope.objects.filter(shard=OuterRef("shard"), device_id=OuterRef("device_id"))
_CLOSED = QueueUsage.objects.filter(closed_at__isnull=False)
_TO_EMPTY = _CLOSED.filter(Exists(_PENDING_HERE))
_TO_REMOVE = _CLOSED.filter(~Exists(_ANYTHING_HERE))


def _empty_shards(now: datetime) -> list[int]:
    shards = set(_TO_EMPTY.values_list("shard", flat=True))
    return sorted(shards | set(_TO_REMOVE.values_list("shard", flat=True)))


def _empty(shard: int, now: datetime, most: int) -> int:
    full = _TO_EMPTY.filter(shard=shard).order_by("device_id")
    usages = queue.usage_lock_free(
        shard=shard, device_ids=full.values_list("device_id", flat=True)[:most]
    )
    purged = purge_closed(shard=shard, usages=usages, now=now, most=most) if usages else 0
    return purged + _remove_empty(shard, most)


def _remove_empty(shard: int, most: int) -> int:
    """Forget devices that are disabled and whose last receipt lapsed."""
    empty = _TO_REMOVE.filter(shard=shard).order_by("device_id")
    usages = queue.usage_lock_free(
        shard=shard, device_ids=empty.values_list("device_id", flat=True)[:most]
    )
    for usage in usages:
        if not Envelope.objects.filter(shard=shard, device_id=usage.device_id).exists():
            queue.remove(usage=usage)
            Device.objects.filter(device_id=usage.device_id).delete()
    return len(usages)


def _clean_shards(now: datetime) -> list[int]:
    return shards_where(Envelope.objects.filter(cleanup_after__lte=now, cleaned_at__isnull=True))


def _clean(shard: int, now: datetime, most: int) -> int:
    return _execute("remove_bodies.sql", shard, now, most)


def _lapse_shards(now: datetime) -> list[int]:
    return shards_where(Envelope.objects.filter(receipt_until__lte=now, cleaned_at__isnull=False))


def _lapse(shard: int, now: datetime, most: int) -> int:
    return _execute("lapse_receipts.sql", shard, now, most)


def _execute(name: str, shard: int, now: datetime, most: int) -> int:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    parameters = {"shard": shard, "now": now, "today": today, "most": most}
    return sql.execute(sql.load(_SQL / name), parameters)


def _prune_shards(now: datetime) -> list[int]:
    return idempotency.shards_with_due_records(now=now)


def _prune(shard: int, now: datetime, most: int) -> int:
    return idempotency.prune(shard=shard, now=now, most=most)


def _tidy_shards(now: datetime) -> list[int]:
    return batches.shards_with_old_batches(now=now)


def _tidy(shard: int, now: datetime, most: int) -> int:
    return batches.batches_prune(shard=shard, now=now, most=most)


#: In this order, so that what one sweep ends the next one cleans in the same round.
SWEEPS = (
    Sweep("expire", _expire_shards, _expire),
    Sweep("empty", _empty_shards, _empty),
    Sweep("clean", _clean_shards, _clean),
    Sweep("lapse", _lapse_shards, _lapse),
    Sweep("prune", _prune_shards, _prune),
    Sweep("tidy", _tidy_shards, _tidy),
)
