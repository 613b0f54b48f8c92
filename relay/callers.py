"""Who is calling."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class CallerKind(StrEnum):
    """The two kinds of callers (PROTOCOL section 1)."""

    DEVICE = "device"
    PROVISIONER = "provisioner"


@dataclass(frozen=True)
class Caller:
    """An authenticated caller."""

    kind: CallerKind
    id: UUID

    @property
    def scope(self) -> str:
        """The caller's part of an idempotency scope."""
        return f"{self.kind}:{self.id}"

    # What DRF asks of a user.
    is_authenticated = True
