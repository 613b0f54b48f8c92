"""`manage.py check_health`: is such a process alive? For supervisors."""

from typing import Any

from django.core.management.base import CommandError, CommandParser

from config.commands import Refused, RelayCommand
from outbox import heartbeats


class Command(RelayCommand):
    help = (
        "Exit with 0 when a process of that name said within the last minute that it is alive, "
        f"with 1 otherwise. Names: {', '.join(heartbeats.PROCESSES)}. The web server has /livez."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", nargs="+", help="the process, such as tick or work wake")

    def handle(self, *args: Any, **options: Any) -> None:
        name = " ".join(options["name"])
        if name not in heartbeats.PROCESSES:
            known = ", ".join(heartbeats.PROCESSES)
            raise CommandError(f"There is no process {name!r}: it is one of {known}.", returncode=2)
        alive = heartbeats.alive(name=name)
        if not alive:
            raise Refused(f"No {name} said within {heartbeats.GONE_AFTER} s that it is alive.")
        self.print(f"{name}: {alive} alive", {"name": name, "alive": alive})
