"""The provisioners of this instance, without anything secret."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from relay.models import Provisioner


@dataclass(frozen=True)
class ProvisionerView:
    """A provisioner as operators see it."""

    provisioner_id: UUID
    name: str
    created_at: datetime
    rotated_at: datetime | None
    revoked_at: datetime | None

    @property
    def state(self) -> str:
        """active or revoked."""
        return "active" if self.revoked_at is None else "revoked"

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "state": self.state}


def provisioners() -> list[ProvisionerView]:
    """All of them, by name."""
    columns = ("provisioner_id", "name", "created_at", "rotated_at", "revoked_at")
    rows = Provisioner.objects.order_by("name").values(*columns)
    return [ProvisionerView(**row) for row in rows]
