"""What must be right before this process touches any mail.

Some settings can do harm in silence: a keys file that lacks a key, files for wakes that hold
something else, and a RELAY_SHARDS that is not the one the database was made with, with which
every device would be looked for in the wrong place. Each stops the process with one line.
"""

import ssl
import sys
from typing import Any, NoReturn

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.signals import connection_created

from config.kernel import keys
from relay.wakes.vapid import VapidKeyError, key_of_file

_SHARDS = """
SELECT shards FROM relay_instance WHERE id = 1
"""
_IS_MIGRATED = "SELECT to_regclass('relay_instance') IS NOT NULL"


def check_keys() -> None:
    """Every purpose has its keys."""
    for purpose in keys.Purpose:
        try:
            keys.ring(purpose)
        except ImproperlyConfigured as error:
            _stop(str(error))


def check_wakes() -> None:
    """The files that wakes need hold what they should."""
    try:
        if settings.WAKE_VAPID_KEY_FILE is not None:
            key_of_file(settings.WAKE_VAPID_KEY_FILE)
        if settings.WAKE_CA_FILE is not None:
            ssl.create_default_context(cafile=settings.WAKE_CA_FILE)
    except VapidKeyError as error:
        _stop(f"WAKE_VAPID_KEY_FILE: {settings.WAKE_VAPID_KEY_FILE} holds {error}")
    except (OSError, ValueError):
        _stop(f"WAKE_CA_FILE: {settings.WAKE_CA_FILE} holds no readable certificates in PEM")


class ShardsCheck:
    """Compares RELAY_SHARDS with the database, on this process's first connection to it."""

    def __init__(self) -> None:
        self._done = False

    def watch(self) -> None:
        """Look when a connection is made; a database that is away now is looked at later."""
        connection_created.connect(self._look, weak=False, dispatch_uid="relay.shards")

    def _look(self, *, connection: Any, **_: Any) -> None:
        if self._done:
            return
        with connection.cursor() as cursor:
            cursor.execute(_IS_MIGRATED)
            if not cursor.fetchone()[0]:
                return  # `migrate` is about to record the number
            cursor.execute(_SHARDS)
            found = cursor.fetchone()
        if found is not None and found[0] != settings.RELAY_SHARDS:
            _stop(
                f"RELAY_SHARDS={settings.RELAY_SHARDS} is not possible: "
                f"it must be {found[0]}, with which this database was made"
            )
        self._done = found is not None


def _stop(line: str) -> NoReturn:
    sys.stderr.write(f"{line}.\n")
    raise SystemExit(2)
