"""Ending pending envelopes without their acknowledgement: expiry, and closed queues.

Whoever calls holds the usage rows of the queues (DESIGN rule 4.2), and gets the quota given
back in the same transaction (rule 4.6).
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from config.kernel import sql
from quotas.models import QueueUsage
from quotas.usage import Freed
from relay.expiry import DUE_SQL, PENDING_OR_DUE_SQL
from relay.models import Outcome
from relay.services.usage import give_back

_FLIP = Path(__file__).parent.parent / "sql" / "flip_pending.sql"
#: How many a submit to a full-looking queue expires at most (DESIGN rule 4.7).
INLINE_MOST = 200


def expire_due(*, shard: int, usages: Sequence[QueueUsage], now: datetime, most: int) -> int:
    """Expire what is due in these locked queues of one shard; returns how many."""
    return _flip(DUE_SQL, Outcome.EXPIRED, shard, usages, now, most=most, most_each=most)


def expire_inline(*, shard: int, usages: Sequence[QueueUsage], now: datetime) -> int:
    """The same on the way of a submit: at most INLINE_MOST of each queue."""
    most = INLINE_MOST * len(usages)
    return _flip(DUE_SQL, Outcome.EXPIRED, shard, usages, now, most=most, most_each=INLINE_MOST)


def purge_closed(*, shard: int, usages: Sequence[QueueUsage], now: datetime, most: int) -> int:
    """End everything pending in these locked, closed queues of one shard; returns how many."""
    return _flip(PENDING_OR_DUE_SQL, Outcome.PURGED, shard, usages, now, most=most, most_each=most)


def _flip(
    predicate: str,
    outcome: Outcome,
    shard: int,
    usages: Sequence[QueueUsage],
    now: datetime,
    *,
    most: int,
    most_each: int,
) -> int:
    statement = sql.load(_FLIP).replace("{predicate}", predicate)
    parameters = {
        "shard": shard,
        "device_ids": [usage.device_id for usage in usages],
        "outcome": str(outcome),
        "now": now,
        "most": most,
        "most_each": most_each,
    }
    freed = [
        Freed(row["device_id"], int(row["count"]), int(row["bytes"]))
        for row in sql.rows(statement, parameters)
    ]
    give_back(shard=shard, usages=usages, freed=freed)
    return sum(entry.count for entry in freed)
