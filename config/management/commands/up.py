"""`manage.py up`: the whole relay on one machine, for a trial."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from config.commands import RelayCommand
from config.trial.errors import TrialError
from config.trial.story import DEFAULT_DATA_DIR, Options, run


class Command(RelayCommand):
    help = (
        "Start everything for a trial and stay: PostgreSQL and Valkey unless DATABASE_URL and "
        "REDIS_URL name yours, the web server, the clock, the dispatcher, the workers. Ctrl-C "
        "stops all of it; the data stays. --json prints, once all is ready, one line of facts."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
        )
        parser.add_argument(
            "--port", default="8000", help="port to listen on (default: %(default)s; 0: a free one)"
        )
        parser.add_argument(
            "--data-dir",
            type=Path,
            default=DEFAULT_DATA_DIR,
            help="where everything is kept (default: .relay in the project)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            asked = Options.checked(
                options["host"], options["port"], options["data_dir"], options["json"]
            )
            run(asked, stdout=self.stdout)
        except TrialError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
