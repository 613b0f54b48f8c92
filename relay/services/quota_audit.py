"""Finding usage rows that do not tell the truth, and mending them (DESIGN rule 4.6)."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db.models import Max

from config.kernel import clock, pseudonyms, sql
from config.kernel.database import durable_transaction
from quotas import usage as queue
from quotas.models import QueueUsage
from relay.models import Envelope
from relay.services.usage import Totals, true_totals

_SUSPECTS = Path(__file__).parent.parent / "sql" / "quota_suspects.sql"
#: A clock row further ahead than this came from a clock that was wrong.
FUTURE = timedelta(minutes=1)


@dataclass(frozen=True)
class Drift:
    """What is wrong with one usage row. The device appears under its pseudonym of today."""

    device: str
    shard: int
    counted: Totals
    true: Totals
    seconds_ahead: float
    repaired: bool


def quota_audit(*, repair: bool) -> Iterator[Drift]:
    """Every usage row whose totals are not the sums, or whose clock is in the future.

    Suspects are found without locks, a shard at a time, and looked at again under their lock,
    so that traffic meanwhile makes no false alarm. With `repair` they are mended there.
    """
    for shard in range(int(settings.RELAY_SHARDS)):
        limit = clock.to_microseconds(clock.read() + FUTURE)
        rows = sql.rows(sql.load(_SUSPECTS), {"shard": shard, "latest_us": limit})
        for row in rows:
            drift = _examine(shard, row["device_id"], repair=repair)
            if drift is not None:
                yield drift


def _examine(shard: int, device_id: UUID, *, repair: bool) -> Drift | None:
    with durable_transaction():
        usage = queue.usage_lock(shard=shard, device_id=device_id)
        if usage is None:
            return None
        now = clock.read()
        counted = Totals(usage.pending_count, usage.pending_bytes)
        true = true_totals(usage=usage)
        ahead = clock.from_microseconds(usage.last_accepted_us) - now
        if counted == true and ahead <= FUTURE:
            return None
        if repair:
            _repair(usage, true, now, mend_clock=ahead > FUTURE)
        return Drift(
            device=pseudonyms.of_device(device_id),
            shard=shard,
            counted=counted,
            true=true,
            seconds_ahead=max(0.0, ahead.total_seconds()),
            repaired=repair,
        )


def _repair(usage: QueueUsage, true: Totals, now: datetime, *, mend_clock: bool) -> None:
    queue.set_totals(usage=usage, count=true.count, size=true.bytes)
    if mend_clock:
        # Never behind what is stored: places must go on rising.
        newest = Envelope.objects.filter(shard=usage.shard, device_id=usage.device_id).aggregate(
            newest=Max("accepted_at")
        )["newest"]
        queue.set_clock(usage=usage, at=max(now, newest) if newest else now)
