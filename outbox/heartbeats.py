"""Who is alive: background processes say so, in PostgreSQL.

Redis is no place for it: after FLUSHALL workers go on, but are not listed there any more. A
process beats from the loop that does its work, never from a thread of its own, so one that is
stuck is not taken for a healthy one.
"""

import time
from datetime import timedelta
from uuid import UUID, uuid4

from config.kernel import clock, sql
from outbox.models import Heartbeat
from outbox.topics import QUEUES

#: Seconds between two beats, and after how many without one a process counts as gone. A job
#: may take 30 (outbox.publishing), a statement 25.
BEAT_EVERY, GONE_AFTER = 5.0, 60
#: Rows of processes that were killed go when another one starts.
_FORGET_AFTER = timedelta(days=1)

DISPATCHER, CLOCK = "dispatch_outbox", "tick"


def worker(queue: str) -> str:
    """The name of a worker on that queue."""
    return f"work {queue}"


#: Every process that beats.
PROCESSES = (DISPATCHER, *map(worker, QUEUES), CLOCK)

_BEAT = """
INSERT INTO outbox_heartbeat (process_id, name, started_at, beat_at)
VALUES (%(process_id)s, %(name)s, %(now)s, %(now)s)
    ON CONFLICT (process_id) DO UPDATE SET beat_at = excluded.beat_at
"""


class Pulse:
    """The beats of one process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process_id: UUID = uuid4()
        self._beat_at: float | None = None

    def beat(self) -> None:
        """Say that this process is alive; seldom enough to be called at any time."""
        moment = time.monotonic()
        if self._beat_at is not None and moment - self._beat_at < BEAT_EVERY:
            return
        now = clock.read()
        if self._beat_at is None:
            Heartbeat.objects.filter(beat_at__lt=now - _FORGET_AFTER).delete()
        sql.execute(_BEAT, {"process_id": self.process_id, "name": self.name, "now": now})
        self._beat_at = moment

    def end(self) -> None:
        """This process ends, on purpose."""
        Heartbeat.objects.filter(process_id=self.process_id).delete()


def alive(*, name: str) -> int:
    """How many processes of that name beat lately."""
    since = clock.read() - timedelta(seconds=GONE_AFTER)
    return Heartbeat.objects.filter(name=name, beat_at__gt=since).count()
