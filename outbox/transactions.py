"""Transactions whose loss in a crash of PostgreSQL costs nothing but a repetition."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from config.kernel.database import durable_transaction


@contextmanager
def forgettable_transaction() -> Iterator[None]:
    """A transaction that does not wait for the disk.

    A claim, or the stamp of a start, that a crash takes back leaves the events as they were:
    due again. Nothing that a client was told, and no completion, belongs in here.
    """
    with durable_transaction():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL synchronous_commit = off")
        yield
