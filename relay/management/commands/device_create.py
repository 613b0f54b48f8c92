"""`manage.py device_create`: devices with fresh credentials."""

import argparse
from typing import Any

from config.commands import RelayCommand
from relay.services.devices import device_create

_MOST = 100_000


class Command(RelayCommand):
    help = "Make devices and print each one's id and token; a token is shown this once."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--count", type=_count, default=1, metavar="N", help=f"how many, 1 to {_MOST:,}"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        for _ in self.track(range(options["count"]), total=options["count"], text="Making devices"):
            device = device_create()
            self.print(
                f"{device.device_id}  {device.token}",
                {"device_id": device.device_id, "token": device.token},
            )
        self.note("Keep the tokens: the relay stores only hashes and cannot show them again.")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"a whole number from 1 to {_MOST:,}")
    return int(text)
