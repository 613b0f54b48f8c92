"""A relay whose backends look for a deadlock before they give up waiting, and what they found."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.client import RelayClient
from tests.conftest import RelayProcess, test_database_url

_NAME = "relay-watched"
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = %s"
_BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"


def deadlocks() -> int:
    """Deadlocks in this database since it was made, as far as its backends told."""
    return _count(_DEADLOCKS, _database())


class Watched:
    """A relay of one test's own.

    By default PostgreSQL looks after a second, and a batch gives up after less: its deadlocks
    would end unseen. A backend tells what it counted when it ends, at the latest.
    """

    def __init__(self, log: Path) -> None:
        self._before = deadlocks()
        url = f"{test_database_url()}?application_name={_NAME}"
        self.process = RelayProcess(log, DATABASE_URL=url)

    def stop_and_count(self) -> int:
        """Deadlocks since the start."""
        self.process.stop()
        deadline = time.monotonic() + 10
        while _count(_BACKENDS, _NAME):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return deadlocks() - self._before


@pytest.fixture
def watched(_migrated: None, tmp_path: Path) -> Iterator[Watched]:
    """The relay to be watched."""
    _set_deadlock_timeout("SET deadlock_timeout = '20ms'")
    made = Watched(tmp_path / "web.log")
    try:
        made.process.start()
        yield made
    finally:
        made.process.stop()
        _set_deadlock_timeout("RESET deadlock_timeout")


@pytest.fixture
def watched_relay(watched: Watched) -> Iterator[RelayClient]:
    """A client of it."""
    with RelayClient(watched.process.url) as client:
        yield client


def _database() -> str:
    return str(connection.settings_dict["NAME"])


def _count(statement: str, name: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement, [name])
        return int(cursor.fetchone()[0])


def _set_deadlock_timeout(clause: str) -> None:
    """For every connection of this database that is made from now on."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {connection.ops.quote_name(_database())} {clause}")
