"""Leases and run records of background processes: facts in PostgreSQL, not in a process.

A lease is a row that one holder may extend until it lets go or its time is up. It does not
keep two processes from ever overlapping (a paused holder wakes up late); what runs under one
must be safe to run twice, and the lease saves the work.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F

from config.kernel import clock, sql
from outbox.models import Lease, SweepRun

_ACQUIRE = """
INSERT INTO outbox_lease AS lease (name, holder, until)
VALUES (%(name)s, %(holder)s, %(until)s)
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
 WHERE lease.holder = excluded.holder OR lease.until <= %(now)s
"""


def lease_hold(*, name: str, holder: UUID, seconds: int) -> bool:
    """Take the lease, or extend it; False when somebody else has it."""
    now = clock.read()
    parameters = {
        "name": name,
        "holder": holder,
        "now": now,
        "until": now + timedelta(seconds=seconds),
    }
    return sql.execute(_ACQUIRE, parameters) == 1


def lease_let_go(*, name: str, holder: UUID) -> None:
    """Give the lease back before its time, so that the next process need not wait."""
    Lease.objects.filter(name=name, holder=holder).delete()


def sweep_runs() -> dict[str, SweepRun]:
    """The record of each sweep that ever ran, by name."""
    return SweepRun.objects.in_bulk()


def sweeps_queued(*, names: Iterable[str], at: datetime) -> None:
    """Note that workers were asked to run these sweeps."""
    SweepRun.objects.filter(name__in=list(names)).update(queued_at=at)


def sweep_started(*, name: str, at: datetime) -> None:
    """Note that a sweep began."""
    SweepRun.objects.update_or_create(name=name, defaults={"started_at": at})


def sweep_succeeded(*, name: str, at: datetime, rows: int) -> None:
    """Note that a sweep came to its end, and count what it did."""
    SweepRun.objects.filter(name=name).update(succeeded_at=at, rows=F("rows") + rows, last_error="")


def sweep_failed(*, name: str, error: str) -> None:
    """Note why a sweep did not: a class and a place, never a message text."""
    SweepRun.objects.filter(name=name).update(last_error=error[:128])
