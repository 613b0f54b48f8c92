"""The dispatcher: from due events to jobs, round by round (OUTBOX.md).

    a wiped Redis is noticed → back-pressure → claim → publish, or put back

Each round is safe to run by any number of processes at once, and to be killed anywhere in.
"""

import logging
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

from django.db import DatabaseError, InterfaceError, close_old_connections, connection
from django.db.models import Sum

from config.kernel import clock, logs
from outbox import machinery, publishing, sentinel
from outbox.models import Batch
from outbox.services.claiming import LEASE, claim
from outbox.services.settling import put_back

#: Events claimed in one round at most.
ROUND_MOST = 2_000
#: Events that may be under way even when nothing was finished lately.
UNDER_WAY_LEAST = 2_000
#: Seconds between two rounds with work, and between two without.
BUSY_PAUSE, IDLE_PAUSE = 0.1, 0.5
#: When a batch that Redis did not take is tried again, doubling while it stays away.
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 10.0

PUBLISHED = logs.event("outbox.published", "batches", "events", level=logging.DEBUG)
QUEUE_AWAY = logs.event("outbox.queue_away", "error", "events", level=logging.WARNING)
STORAGE_AWAY = logs.event("outbox.storage_away", "error", level=logging.WARNING)
WIPED = logs.event("outbox.queue_wiped", "events", level=logging.WARNING)


@dataclass
class Dispatcher:
    """One dispatcher process."""

    stopping: threading.Event = field(default_factory=threading.Event)
    process_id: UUID = field(default_factory=uuid4)
    rounds: int = 0
    published: int = 0
    put_back: int = 0
    _retry: float = _FIRST_RETRY

    def dispatch_once(self) -> bool:
        """One round; True when there may be more to do at once."""
        try:
            close_old_connections()
            machinery.beat(name="dispatch_outbox", process_id=self.process_id)
            woken = sentinel.look()
            if woken:
                WIPED(events=woken)
            return self._claim_and_publish() > 0
        except (DatabaseError, InterfaceError) as error:
            STORAGE_AWAY(error=logs.where(error))
            connection.close()
            return False
        finally:
            self.rounds += 1

    def run(self) -> None:
        """Round after round until `stopping` is set."""
        while not self.stopping.is_set():
            busy = self.dispatch_once()
            self.stopping.wait(BUSY_PAUSE if busy else IDLE_PAUSE)

    def _claim_and_publish(self) -> int:
        room = room_left()
        batches = claim(most=min(ROUND_MOST, room)) if room > 0 else []
        if not batches:
            return 0
        events = sum(batch.count for batch in batches)
        try:
            publishing.publish(batches)
        except publishing.PublishError as error:
            QUEUE_AWAY(error=str(error), events=events)
            for batch in batches:
                put_back(batch, after=timedelta(seconds=self._retry))
            self._retry = min(self._retry * 2, _LONGEST_RETRY)
            self.put_back += events
            return 0
        self._retry = _FIRST_RETRY
        self.published += events
        PUBLISHED(batches=len(batches), events=events)
        return events


def room_left() -> int:
    """Events that may still be claimed: no more than a minute's work is ever under way.

    Else leases run out inside a long queue, and everything in it is done twice.
    """
    now = clock.read()
    recent = Batch.objects.filter(claimed_at__gt=now - LEASE)
    under_way = recent.filter(done_at__isnull=True).aggregate(events=Sum("count"))["events"] or 0
    finished = recent.filter(done_at__isnull=False).aggregate(events=Sum("count"))["events"] or 0
    return int(max(UNDER_WAY_LEAST, finished) - under_way)
