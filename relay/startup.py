"""What must be right before this process touches any mail.

Two settings can do harm in silence: a keys file that lacks a key, and a RELAY_SHARDS that is
not the one the database was made with, with which every device would be looked for in the
wrong place. Both stop the process with one line.
"""

import sys
from typing import Any, NoReturn

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.signals import connection_created

from config.kernel import keys

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
