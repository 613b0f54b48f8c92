"""The dispatcher: from due events to jobs, round by round (OUTBOX.md).

    a wiped Redis is noticed → back-pressure → claim → publish, or undo

Each round is safe to run by any number of processes at once, and to be killed anywhere in.
While Redis is away nothing is claimed, so that a long outage costs the events neither an
update nor a failure.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from config.kernel import failpoints, logs
from outbox import heartbeats, publishing, sentinel, topics
from outbox.heartbeats import Pulse
from outbox.jobs import HANDLE_BATCH
from outbox.outages import Outage
from outbox.publishing import Job, PublishError
from outbox.services.batches import ClaimedBatch
from outbox.services.claiming import claim
from outbox.services.pressure import room
from outbox.services.settling import claim_undo
from outbox.topics import Topic

#: Events claimed in one round at most, of each topic; and as a try, after Redis refused some.
ROUND_MOST, TRY_MOST = 2_000, 50
#: Seconds between two rounds that found work; of those that found none each waits twice as long.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 0.5
#: Seconds until Redis is asked again that was away, and until a refused event is due again.
AWAY_PAUSE = 1.0
#: Seconds for which the measure of back-pressure is good.
_ROOM_FOR = 1.0

PUBLISHED = logs.event("outbox.published", "batches", "events", level=logging.DEBUG)
QUEUE_AWAY = logs.event("outbox.queue_away", "error", "events", level=logging.WARNING)
QUEUE_BACK = logs.event("outbox.queue_back", level=logging.WARNING)
STORAGE_AWAY = logs.event("outbox.storage_away", "error", level=logging.WARNING)
STORAGE_BACK = logs.event("outbox.storage_back", level=logging.WARNING)
WIPED = logs.event("outbox.queue_wiped", "events", level=logging.WARNING)
EVICTS = logs.event("outbox.queue_evicts", "policy", level=logging.WARNING)


@dataclass
class Dispatcher:
    """One dispatcher process."""

    stopping: threading.Event = field(default_factory=threading.Event)
    pulse: Pulse = field(default_factory=lambda: Pulse(heartbeats.DISPATCHER))
    rounds: int = 0
    published: int = 0
    refused: int = 0
    storage: Outage = field(default_factory=lambda: Outage(STORAGE_AWAY, STORAGE_BACK))
    queue: Outage = field(default_factory=lambda: Outage(QUEUE_AWAY, QUEUE_BACK))
    _pause: float = SHORTEST_PAUSE
    _is_full: bool = False  # Redis answers, and takes nothing
    _is_known: bool = False  # Redis was looked at since this process began, or lost it
    _is_gathering: bool = False  # workers have enough before them
    _room: dict[Topic, int] = field(default_factory=dict)
    _measured_at: float = float("-inf")

    def dispatch_once(self) -> int:
        """One round; how many events it published. Raises nothing that one can survive."""
        self.rounds += 1
        try:
            close_old_connections()
            self.pulse.beat()
            published = self._round()
        except (DatabaseError, InterfaceError) as error:
            self.storage.begin(error=logs.where(error))
            connection.close()
            return 0
        self.storage.end()
        return published

    def run(self) -> None:
        """Round after round until `stopping` is set."""
        while not self.stopping.is_set():
            if self.dispatch_once() or self._is_gathering:
                self._pause = SHORTEST_PAUSE
            else:
                self._pause = (
                    AWAY_PAUSE if self.queue.is_on else min(self._pause * 2, LONGEST_PAUSE)
                )
            self.stopping.wait(self._pause)

    def end(self) -> None:
        """This process ends, on purpose."""
        try:
            self.pulse.end()
        except (DatabaseError, InterfaceError):
            return  # its row goes by itself

    def _round(self) -> int:
        claimed: Sequence[ClaimedBatch] = ()
        try:
            woken = sentinel.look(topics=[topic.name for topic in topics.known()])
            if woken:
                WIPED(events=woken)
            self._look_at_queue()
            busy = self._busy()
            claimed = claim(room=self._measure(), gather=busy)
            self._is_gathering = bool(busy)
            if not claimed:
                return 0
            failpoints.hit("outbox.claimed")
            publishing.publish(map(_job, claimed))
        except PublishError as error:
            self._is_full, self._is_known = bool(claimed), False
            self._undo(claimed, str(error))
            return 0
        self._is_full = False
        self.queue.end()
        failpoints.hit("outbox.published")
        return self._account(claimed)

    def _look_at_queue(self) -> None:
        """Redis answered; it may still be full."""
        if not self._is_full:
            self.queue.end()
        if not self._is_known:
            self._is_known = True
            if policy := publishing.eviction_policy():
                EVICTS(policy=policy)

    def _busy(self) -> set[str]:
        """Topics whose queue holds a job that no worker was free to take."""
        queues = {topic.queue for topic in topics.known()}
        busy = {name for name in queues if publishing.waiting(name)}
        return {topic.name for topic in topics.known() if topic.queue in busy}

    def _account(self, claimed: Sequence[ClaimedBatch]) -> int:
        by_topic: Counter[str] = Counter()
        for batch in claimed:
            by_topic[batch.topic] += batch.count
        self._room = {topic: most - by_topic[topic.name] for topic, most in self._room.items()}
        self.published += by_topic.total()
        PUBLISHED(batches=len(claimed), events=by_topic.total())
        return by_topic.total()

    def _undo(self, claimed: Sequence[ClaimedBatch], error: str) -> None:
        events = sum(batch.count for batch in claimed)
        self.queue.begin(error=error, events=events)
        for batch in claimed:
            claim_undo(batch, after=timedelta(seconds=AWAY_PAUSE), code="QUEUE_AWAY")
        self.refused += events
        self._measured_at = float("-inf")

    def _measure(self) -> dict[Topic, int]:
        """Room by topic. The count is good for a second: what others finish only adds to it."""
        age = time.monotonic() - self._measured_at
        if age > _ROOM_FOR or any(most <= 0 for most in self._room.values()):
            self._room = room(topics=topics.known())
            self._measured_at = time.monotonic()
        most_each = TRY_MOST if self.queue.is_on else ROUND_MOST
        return {topic: min(most, most_each) for topic, most in self._room.items()}


def _job(batch: ClaimedBatch) -> Job:
    return Job(
        id=str(batch.batch_id),
        queue=batch.queue,
        entry=HANDLE_BATCH,
        argument=batch.payload(),
    )
