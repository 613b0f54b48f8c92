"""How `admin` shows the accounts, and what stands before Django's own commands for them."""

from typing import Any, ClassVar

from rich.console import RenderableType

from adminui.selectors.admins import admins
from config.commands import Mistaken, RelayCommand, in_minutes, table

_COLUMNS = ("Username", "Email", "State", "Role", "Made", "Last sign-in")


def accounts() -> tuple[RenderableType, list[dict[str, Any]]]:
    """Every account, as operators read it and for `--json`."""
    found = admins()
    rows = [
        [
            *(entry.username, entry.email, entry.state, entry.role),
            *(in_minutes(entry.date_joined), in_minutes(entry.last_login)),
        ]
        for entry in found
    ]
    human = table(_COLUMNS, rows) if rows else "None yet."
    return human, [entry.document() for entry in found]


class StandsInTheWay(RelayCommand):
    """In the place of a command of Django's that would change an account unaudited."""

    stands_in_the_way = True
    instead: ClassVar[str]

    def run_from_argv(self, argv: list[str]) -> None:
        """Whatever Django's own would take."""
        super().run_from_argv(argv[:2])

    def handle(self, *args: Any, **options: Any) -> None:
        """Say which command to use."""
        raise Mistaken(f"The audit log has to learn of this: use `manage.py {self.instead}`.")
