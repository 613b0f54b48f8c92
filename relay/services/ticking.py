"""The clock of a deployment: what runs every few seconds, in one process at a time.

The sweeps are handed to the maintenance workers, none while its last job is pending. But the
promise that ciphertext is gone within the hour must depend neither on Redis nor on a worker:
what could not be handed over, because Redis is away or no worker is alive, the clock runs
itself at once, and any sweep whose last success is five minutes old as well, whatever became
of its jobs.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from config.kernel import clock, logs
from outbox import heartbeats, machinery, publishing
from outbox.heartbeats import Pulse
from outbox.models import SweepRun
from outbox.outages import Outage
from outbox.publishing import Job, PublishError
from relay.jobs import SWEEP
from relay.services.sweeping import Pace, sweep_all
from relay.services.sweeps import SWEEPS, Sweep

#: Seconds that the lease outlives its holder's last sign.
LEASE_SECONDS = 45
#: Seconds that one sweep may take of a round, so that no other waits long for its turn.
TURN_SECONDS = 8.0
#: A sweep that did not succeed for so long is run here.
OVERDUE = timedelta(minutes=5)
#: A job that was not heard of for so long is lost, and the sweep is handed over again.
LOST = timedelta(seconds=publishing.JOB_TTL)
QUEUE = "maintenance"
_LEASE = "tick"

STORAGE_AWAY = logs.event("tick.storage_away", "error", level=logging.WARNING)
STORAGE_BACK = logs.event("tick.storage_back", level=logging.WARNING)


@dataclass
class Clock:
    """One clock process. Only the one that holds the lease works; the others stand by."""

    stopping: threading.Event
    holder: UUID
    pulse: Pulse = field(default_factory=lambda: Pulse(heartbeats.CLOCK))
    storage: Outage = field(default_factory=lambda: Outage(STORAGE_AWAY, STORAGE_BACK))
    rounds: int = 0
    rows: int = 0

    @classmethod
    def new(cls) -> "Clock":
        """A clock that runs until its event is set."""
        return cls(stopping=threading.Event(), holder=uuid4())

    def tick(self) -> bool:
        """One round, when the lease is ours; False when another process has it, or the
        database is away."""
        try:
            close_old_connections()
            is_ours = self._is_ours()
            if is_ours:
                self._round()
        except (DatabaseError, InterfaceError) as error:
            self.storage.begin(error=logs.where(error))
            connection.close()
            return False
        self.storage.end()
        return is_ours

    def let_go(self) -> None:
        """Leave the lease to the next process."""
        try:
            machinery.lease_let_go(name=_LEASE, holder=self.holder)
            self.pulse.end()
        except (DatabaseError, InterfaceError):
            return  # it runs out by itself

    def _round(self) -> None:
        for sweep in self._hand_over():
            if self.stopping.is_set() or not self._is_ours():
                break
            self._run(sweep)
        self.rounds += 1

    def _is_ours(self) -> bool:
        self.pulse.beat()
        return machinery.lease_hold(name=_LEASE, holder=self.holder, seconds=LEASE_SECONDS)

    def _run(self, sweep: Sweep) -> None:
        reports = sweep_all(
            sweeps=[sweep], pace=Pace(), stop=self.stopping.is_set, most_seconds=TURN_SECONDS
        )
        self.rows += sum(report.rows for report in reports)

    def _hand_over(self) -> list[Sweep]:
        """Ask the workers for what is not pending; returns what is to be run here."""
        now = clock.read()
        runs = machinery.sweep_runs()
        overdue = [sweep for sweep in SWEEPS if _is_overdue(runs.get(sweep.name), now)]
        free = [
            sweep
            for sweep in SWEEPS
            if sweep not in overdue and not _is_pending(runs.get(sweep.name), now)
        ]
        if not free or _publish(free, now):
            return overdue
        return [sweep for sweep in SWEEPS if sweep in overdue or sweep in free]


def _is_overdue(run: SweepRun | None, now: datetime) -> bool:
    return run is None or run.succeeded_at is None or run.succeeded_at <= now - OVERDUE


def _is_pending(run: SweepRun | None, now: datetime) -> bool:
    """A worker was asked, and there was neither a success since nor time enough to lose it."""
    if run is None or run.queued_at is None or run.queued_at <= now - LOST:
        return False
    return run.succeeded_at is None or run.succeeded_at < run.queued_at


def _publish(sweeps: Sequence[Sweep], now: datetime) -> bool:
    """Hand sweeps over; False when nobody is there to take them."""
    if not heartbeats.alive(name=heartbeats.worker(QUEUE)):
        return False
    jobs = [Job(str(uuid4()), QUEUE, SWEEP, {"sweep": sweep.name}) for sweep in sweeps]
    try:
        publishing.publish(jobs)
    except PublishError:
        return False
    machinery.sweeps_queued(names=[sweep.name for sweep in sweeps], at=now)
    return True
