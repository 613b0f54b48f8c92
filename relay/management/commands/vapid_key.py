"""`manage.py vapid_key`: the key that push services know this relay by."""

from typing import Any

from django.conf import settings

from config.commands import RelayCommand
from relay.wakes import wiring


class Command(RelayCommand):
    help = (
        "Print the public VAPID key, which clients pass to their browser as "
        "applicationServerKey. It is derived from SECRET_KEY unless WAKE_VAPID_KEY_FILE is set; "
        "before SECRET_KEY changes, move it to a file: with another key, every Web Push "
        "subscription is over."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--private",
            action="store_true",
            help="print the private key instead, as WAKE_VAPID_KEY_FILE takes it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        vapid = wiring.vapid()
        if options["private"]:
            pem = vapid.private_pem()
            self.print(pem.rstrip("\n"), {"private_key": pem})
            return
        source = "derived from SECRET_KEY" if settings.WAKE_VAPID_KEY_FILE is None else "file"
        self.print(vapid.public_key, {"public_key": vapid.public_key, "source": source})
