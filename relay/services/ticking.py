"""The clock of a deployment: what runs every few seconds, in one process at a time."""

import logging
import threading
from dataclasses import dataclass
from uuid import UUID, uuid4

from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from config.kernel import logs
from outbox import machinery
from relay.services.sweeping import Pace, sweep_all

#: Seconds that the lease outlives the last round of its holder.
LEASE_SECONDS = 45
#: Seconds that one sweep may take of a round, so that no other waits long for its turn.
TURN_SECONDS = 8.0
_LEASE = "tick"

STORAGE_AWAY = logs.event("tick.storage_away", "error", level=logging.WARNING)


@dataclass
class Clock:
    """One clock process. Only the one that holds the lease works; the others stand by."""

    stopping: threading.Event
    holder: UUID
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
            if not machinery.lease_hold(name=_LEASE, holder=self.holder, seconds=LEASE_SECONDS):
                return False
            reports = sweep_all(pace=Pace(), stop=self.stopping.is_set, most_seconds=TURN_SECONDS)
        except (DatabaseError, InterfaceError) as error:
            STORAGE_AWAY(error=logs.where(error))
            connection.close()
            return False
        self.rounds += 1
        self.rows += sum(report.rows for report in reports)
        return True

    def let_go(self) -> None:
        """Leave the lease to the next process."""
        try:
            machinery.lease_let_go(name=_LEASE, holder=self.holder)
        except (DatabaseError, InterfaceError):
            return  # it runs out by itself
