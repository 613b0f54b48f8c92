"""Somebody else at the database: locks held from outside, as an operator's psql would."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import psycopg

from tests import conftest


def connect(**options: object) -> psycopg.Connection:
    """A connection of our own to the database under test."""
    return psycopg.connect(conftest.test_database_url(), **options)  # type: ignore[arg-type]


@contextmanager
def usage_row_locked(device_id: UUID) -> Iterator[Callable[[], None]]:
    """Hold a device's usage row; the value lets go before the end of the block."""
    with connect(application_name="outside") as held:
        found = held.execute(
            "SELECT 1 FROM quotas_queueusage WHERE device_id = %s FOR UPDATE", [device_id]
        ).fetchone()
        assert found is not None, "there is no such device"
        yield held.rollback
        held.rollback()


def waiting_for_a_lock(at_least: int = 1, seconds: float = 10) -> None:
    """Return once so many sessions of this database wait for somebody's lock."""
    deadline = time.monotonic() + seconds
    with connect(autocommit=True) as look:
        while True:
            (waiting,) = look.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone() or (0,)
            if waiting >= at_least:
                return
            assert time.monotonic() < deadline, f"{waiting} wait, {at_least} were expected"
            time.sleep(0.005)
