"""What a device sees of itself: `GET /v1/device` (PROTOCOL section 6)."""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from config.kernel import clock, sql
from config.kernel.shards import shard_of_device
from relay.expiry import DUE_SQL
from relay.models import Device, DeviceState

_QUEUE = Path(__file__).parent.parent / "sql" / "device_queue.sql"


@dataclass(frozen=True)
class DeviceView:
    """A device's own queue, in envelopes and bytes, and how it is woken."""

    pending_count: int
    pending_bytes: int
    wake_transport: str | None


def device_view(*, device_id: UUID) -> DeviceView | None:
    """The device's view of itself; None when it was removed a moment ago."""
    parameters = {
        "shard": shard_of_device(device_id),
        "device_id": device_id,
        "now": clock.read(),
    }
    found = sql.rows(sql.load(_QUEUE).replace("{due}", DUE_SQL), parameters)
    if not found:
        return None
    row = found[0]
    return DeviceView(int(row["count"]), int(row["bytes"]), row["wake_transport"])


def device_is_disabled(*, device_id: UUID) -> bool:
    """Whether the id was a device's once and is kept, disabled, while its receipts are."""
    return Device.objects.filter(device_id=device_id, state=DeviceState.DISABLED).exists()
