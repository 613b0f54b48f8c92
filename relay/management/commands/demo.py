"""`manage.py demo`: the relay's main job on a real file, told as it happens."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from rich.text import Text

from config import environment
from config.commands import RelayCommand
from relay.demo import client, crypto, story


class Command(RelayCommand):
    help = (
        "Carry FILE (README.md) end-to-end encrypted between two devices, through a running "
        "relay, and tell what happens. Exits 0 only if the bytes came back equal."
    )
    refusals = (story.DemoFailed, client.RelayError, crypto.Tampered)

    def add_arguments(self, parser: CommandParser) -> None:
        readme = settings.BASE_DIR / "README.md"
        parser.add_argument("file", nargs="?", type=Path, default=readme, metavar="FILE")
        parser.add_argument("--url", default=settings.RELAY_URL, help="default: %(default)s")
        parser.add_argument("--provisioner-token-file", type=Path, help="default: the trial's")

    def handle(self, *args: Any, **options: Any) -> None:
        token = environment.text("RELAY_DEMO_PROVISIONER_TOKEN", "", secret=True)
        token_file = options["provisioner_token_file"]
        plan = story.plan_from(options["file"], options["url"], token_file, token)
        try:
            facts = story.run(plan, show=self._show, warn=self.stderr.write)
        except KeyboardInterrupt:
            raise CommandError("Stopped half-way.", returncode=130) from None
        self.print(str(facts), facts)

    def _show(self, line: Text) -> None:
        if not self._options["json"]:
            self.print(line, None)
