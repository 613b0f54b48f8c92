"""The accounts of the console, without anything secret."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User


@dataclass(frozen=True)
class AdminView:
    """An account as operators see it."""

    username: str
    email: str
    is_active: bool
    is_staff: bool
    is_superuser: bool
    date_joined: datetime
    last_login: datetime | None

    @property
    def state(self) -> str:
        """active, or disabled: cannot sign in."""
        return "active" if self.is_active and self.is_staff else "disabled"

    @property
    def role(self) -> str:
        """owner may do everything; none may sign in and do nothing."""
        return "owner" if self.is_superuser else "none"

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        facts = asdict(self)
        for name in ("is_active", "is_staff", "is_superuser"):
            del facts[name]
        return {**facts, "state": self.state, "role": self.role}


def admins() -> list[AdminView]:
    """All of them, by name."""
    columns = AdminView.__dataclass_fields__
    return [AdminView(**row) for row in User.objects.order_by("username").values(*columns)]
