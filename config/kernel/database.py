"""Transactions and database failures (DESIGN rules 4.1 and 4.8)."""

import re
import select
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction

from config.kernel.problems import Problem, StorageUnavailable


@contextmanager
def durable_transaction() -> Iterator[None]:
    """The one transaction of a request. Refuses to nest: what is inside commits here or never."""
    with transaction.atomic(durable=True):
        yield


def forget_dead_connection() -> None:
    """Let go of a connection that ended while nobody used it, as in a restart of PostgreSQL.

    Its socket says so: nothing is to be read from an idle one but its end. To be called between
    two requests; the next statement then connects anew instead of failing.
    """
    held = connection.connection
    if held is not None and not connection.in_atomic_block and (held.closed or _has_ended(held)):
        connection.close()


def _has_ended(held: psycopg.Connection) -> bool:
    poll = select.poll()
    poll.register(held.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


def assert_in_transaction() -> None:
    """Inner code relies on the caller's transaction; outside one its locks would mean nothing."""
    if not connection.in_atomic_block:
        raise RuntimeError("This must run inside durable_transaction().")


def assert_no_transaction() -> None:
    """Network calls and waits must not happen while rows are locked."""
    if connection.in_atomic_block:
        raise RuntimeError("This must not run inside a transaction.")


def limit_lock_waits(milliseconds: int) -> None:
    """Wait no longer than this for any lock in what is left of the running transaction."""
    assert_in_transaction()
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{milliseconds}ms"])


def is_lock_timeout(error: DatabaseError) -> bool:
    """Whether PostgreSQL gave up waiting for a lock (SQLSTATE 55P03)."""
    return isinstance(error.__cause__, psycopg.errors.LockNotAvailable)


_RELATION = re.compile(r'relation "(\w+)"')


def lock_waited_for(error: DatabaseError) -> str | None:
    """The table of the lock that was not to be had, when a function waited for it.

    The server says so in the error's context, which it sends and (in terse mode) never logs.
    """
    cause = error.__cause__
    context = cause.diag.context if isinstance(cause, psycopg.Error) else None
    match = _RELATION.search(context or "")
    return match[1] if match else None


#: What PostgreSQL raises when it cannot store anything just now, beside OperationalError:
#: a standby or a server set read-only, and a statement cut short.
_UNAVAILABLE = (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.QueryCanceled)


def storage_problem(error: DatabaseError | InterfaceError) -> Problem | None:
    """STORAGE_UNAVAILABLE for an error of the database's state; None for a bug of ours."""
    if isinstance(error, OperationalError | InterfaceError):
        return StorageUnavailable()
    if isinstance(error.__cause__, _UNAVAILABLE):
        return StorageUnavailable()
    return None
