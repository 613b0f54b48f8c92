"""`manage.py up`: the whole relay on one machine, for a trial."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from config.trial.errors import TrialError
from config.trial.story import DEFAULT_DATA_DIR, Options, run


class Command(BaseCommand):
    help = (
        "Start everything for a trial and stay: PostgreSQL and Valkey unless DATABASE_URL and "
        "REDIS_URL name yours, the web server, the clock. Ctrl-C stops all of it."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
        parser.add_argument("--port", default="8000", help="port to listen on; 0: any free one")
        parser.add_argument(
            "--data-dir", type=Path, default=DEFAULT_DATA_DIR, help="where everything is kept"
        )
        parser.add_argument(
            "--json", action="store_true", help="once ready, one line of facts on stdout"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            asked = Options.checked(
                options["host"], options["port"], options["data_dir"], options["json"]
            )
            run(asked, stdout=self.stdout)
        except TrialError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
