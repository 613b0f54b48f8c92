"""Whom a batch of wakes is of use to (OUTBOX.md, "Handled")."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from uuid import UUID

from config.kernel import sql
from config.kernel.shards import shard_of_device
from relay.expiry import PENDING_SQL

_TARGETS = Path(__file__).parent.parent / "sql" / "wake_targets.sql"


@dataclass(frozen=True)
class Target:
    """A device to wake, and its registration as it is sealed in its row."""

    device_id: UUID
    sealed: bytes = field(repr=False)


def wake_targets(*, device_ids: Iterable[UUID], now: datetime) -> list[Target]:
    """Those of these devices that are active, registered, and have mail waiting; one statement."""
    wanted = sorted(set(device_ids))
    parameters = {
        "shards": [shard_of_device(device_id) for device_id in wanted],
        "device_ids": wanted,
        "now": now,
    }
    rows = sql.rows(sql.load(_TARGETS).replace("{pending}", PENDING_SQL), parameters)
    return [Target(row["device_id"], bytes(row["wake_sealed"])) for row in rows]
