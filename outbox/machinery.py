"""Leases and run records of background processes: facts in PostgreSQL, not in a process.

A lease is a row that one holder may extend until it lets go or its time is up. It does not
keep two processes from ever overlapping (a paused holder wakes up late); what runs under one
must be safe to run twice, and the lease saves the work.
"""

import time
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F

from config.kernel import clock, sql
from outbox.models import Heartbeat, Lease, SweepRun

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


def sweep_started(*, name: str, at: datetime) -> None:
    """Note that a sweep began."""
    SweepRun.objects.update_or_create(name=name, defaults={"started_at": at})


def sweep_succeeded(*, name: str, at: datetime, rows: int) -> None:
    """Note that a sweep came to its end, and count what it did."""
    SweepRun.objects.filter(name=name).update(succeeded_at=at, rows=F("rows") + rows, last_error="")


def sweep_failed(*, name: str, error: str) -> None:
    """Note why a sweep did not: a class and a place, never a message text."""
    SweepRun.objects.filter(name=name).update(last_error=error[:128])


#: Seconds between two beats, and after how many without one a process counts as gone.
BEAT_EVERY, GONE_AFTER = 5, 30
_last_beat: dict[UUID, float] = {}


def beat(*, name: str, process_id: UUID) -> None:
    """Say that this process is alive; at most every BEAT_EVERY seconds."""
    if time.monotonic() - _last_beat.get(process_id, -BEAT_EVERY) < BEAT_EVERY:
        return
    now = clock.read()
    Heartbeat.objects.update_or_create(
        process_id=process_id,
        defaults={"beat_at": now},
        create_defaults={"name": name, "started_at": now, "beat_at": now},
    )
    _last_beat[process_id] = time.monotonic()


def beat_no_more(*, process_id: UUID) -> None:
    """This process ends, on purpose."""
    _last_beat.pop(process_id, None)
    Heartbeat.objects.filter(process_id=process_id).delete()


def alive(*, name: str) -> int:
    """How many processes of that name beat lately."""
    since = clock.read() - timedelta(seconds=GONE_AFTER)
    return Heartbeat.objects.filter(name=name, beat_at__gt=since).count()
