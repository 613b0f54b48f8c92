"""A worker: one queue, one process, JSON (OUTBOX.md, "RQ: traps, and what answers them").

RQ's SimpleWorker runs the jobs in this very process: a fork would share the database
connection, and costs a hundred times what a batch does. What is changed in it:

    waits    a second at a time, so that a stop is heeded at once and no signal handler has to
             raise between the pop and the start of a job
    commands none: RQ's can stop or suspend a worker on the word of whoever writes to Redis
    jobs     only entries of ours, without callbacks and webhooks (outbox.publishing.EntryJob)
    errors   of Redis end RQ's loop, and `Worker` begins a new one at most two seconds later
"""

import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from django.db import DatabaseError, InterfaceError, connection
from rq import SimpleWorker
from rq.exceptions import DequeueTimeout, StopRequested
from rq.job import Job as RqJob
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.utils import now

from config.kernel import logs
from outbox import entries, heartbeats, publishing
from outbox.heartbeats import Pulse
from outbox.outages import Outage
from outbox.publishing import QUEUE_ERRORS, EntryJob, PublishError

#: Seconds of one wait for a job.
_WAIT = 1
#: Seconds until a worker looks again when Redis was away: doubling, from the first on.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 2.0
#: Seconds until it looks again when PostgreSQL was away.
_STORAGE_PAUSE = 1.0
#: Seconds that RQ keeps its row of a worker after the last sign; it derives others from it.
_WORKER_TTL = 60

QUEUE_AWAY = logs.event("worker.queue_away", "queue", "error", level=logging.WARNING)
QUEUE_BACK = logs.event("worker.queue_back", "queue", level=logging.WARNING)
STORAGE_AWAY = logs.event("worker.storage_away", "queue", "error", level=logging.WARNING)
STORAGE_BACK = logs.event("worker.storage_back", "queue", level=logging.WARNING)
NOT_CLEANED = logs.event("worker.not_cleaned", "queue", "error", level=logging.WARNING)
REFUSED = logs.event("worker.refused_job", "queue", level=logging.ERROR)


@dataclass
class Worker:
    """One worker process. Runs in the main thread: RQ's time limit is an alarm signal."""

    queue: str
    max_jobs: int | None = None
    burst: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    jobs: int = 0
    redis: Outage = field(default_factory=lambda: Outage(QUEUE_AWAY, QUEUE_BACK))
    storage: Outage = field(default_factory=lambda: Outage(STORAGE_AWAY, STORAGE_BACK))
    _pause: float = _FIRST_PAUSE

    def __post_init__(self) -> None:
        self.pulse = Pulse(heartbeats.worker(self.queue))
        entries.discover()

    @property
    def is_over(self) -> bool:
        """It was asked to stop, or has done as many jobs as it should."""
        return self.stopping.is_set() or (self.max_jobs is not None and self.jobs >= self.max_jobs)

    def run(self) -> None:
        """Work until it is over; in a burst, until the queue is empty or something is away."""
        while not self.is_over:
            error = self._work()
            if error is not None:
                self.redis.begin(queue=self.queue, error=error)
            if self.is_over or self.burst:
                break
            self._wait_for_queue()

    def end(self) -> None:
        """This process ends, on purpose."""
        with suppress(DatabaseError, InterfaceError):
            self.pulse.end()

    def is_ready(self) -> bool:
        """Whether PostgreSQL answers; if so, it hears that this process is alive.

        Without it a job would fail at once, and its events wait for the end of their lease. So
        none is begun, and a connection that was cut is noticed before.
        """
        try:
            if connection.connection is not None and not connection.is_usable():
                connection.close()
            self.pulse.beat()
            connection.ensure_connection()
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            self.storage.begin(queue=self.queue, error=logs.where(error))
            return False
        self.storage.end(queue=self.queue)
        return True

    def reached(self) -> None:
        """Redis answered."""
        self._pause = _FIRST_PAUSE
        self.redis.end(queue=self.queue)

    def _wait_for_queue(self) -> None:
        self.is_ready()
        self.stopping.wait(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _work(self) -> str | None:
        """One loop of RQ's; the name of the error that ended it."""
        try:
            redis = publishing.new_connection(timeout=_WAIT + publishing.REDIS_TIMEOUT)
            loop = _Loop(self, publishing.queue(self.queue, on=redis))
            loop.work(burst=self.burst, logging_level="WARNING")
        except (*QUEUE_ERRORS, PublishError) as error:
            return type(error).__name__
        return loop.broken_by


class _Loop(SimpleWorker):
    """RQ's worker, as described above."""

    def __init__(self, worker: Worker, queue: Queue) -> None:
        self._worker = worker
        self.broken_by: str | None = None
        super().__init__(
            [queue],
            # A fixed name would be refused after a SIGKILL until a key expires.
            name=f"{queue.name}-{os.getpid()}-{uuid4().hex[:8]}",
            connection=queue.connection,
            serializer=JSONSerializer,
            job_class=EntryJob,
            worker_ttl=_WORKER_TTL,
        )

    def _set_connection(self, connection: Any) -> Any:
        """RQ would lengthen the time limit of every command to minutes."""
        return connection

    def _install_signal_handlers(self) -> None:
        """They are the command's (`work`), and only set a flag."""

    def subscribe(self) -> None:
        """Listen to no commands."""

    def check_for_suspension(self, burst: bool) -> None:
        """Nobody suspends us; but this is where RQ's loop begins anew."""
        if self._worker.is_over:
            raise StopRequested

    def run_maintenance_tasks(self) -> None:
        """RQ's housekeeping in Redis. Nothing of ours depends on it, so no work waits for it."""
        try:
            super().run_maintenance_tasks()
        except QUEUE_ERRORS as error:
            NOT_CLEANED(queue=self._worker.queue, error=type(error).__name__)
        finally:
            self.last_cleaned_at = now()  # type: ignore[assignment]  # RQ infers None

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[RqJob, Queue] | None:
        """The next job; None in a burst when there is none."""
        try:
            while not self._worker.is_over:
                self.heartbeat()
                self._worker.reached()
                if not self._worker.is_ready():
                    if timeout is None:  # a burst
                        break
                    self._worker.stopping.wait(_STORAGE_PAUSE)
                    continue
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()
                try:
                    return self.queue_class.dequeue_any(
                        self._ordered_queues,
                        timeout and _WAIT,
                        connection=self.connection,
                        job_class=self.job_class,
                        serializer=self.serializer,
                        death_penalty_class=self.death_penalty_class,
                    )
                except DequeueTimeout:
                    continue
        except QUEUE_ERRORS as error:
            self.broken_by = type(error).__name__
            raise StopRequested from error
        raise StopRequested

    def execute_job(self, job: RqJob, queue: Queue) -> None:
        """Run a job of ours, if that is possible now; throw away any other."""
        try:
            if not isinstance(job, EntryJob) or not job.is_entry:
                REFUSED(queue=queue.name)
                queue.intermediate_queue.remove(job.id)
                job.delete(remove_from_queue=False)
            elif self._worker.is_ready():
                self._worker.jobs += 1
                super().execute_job(job, queue)
            else:  # PostgreSQL went away while we waited for the job
                queue.push_job_id(job.id, at_front=True)
                queue.intermediate_queue.remove(job.id)
        except QUEUE_ERRORS as error:  # what matters is in PostgreSQL already
            self.broken_by = type(error).__name__
            raise StopRequested from error

    def teardown(self) -> None:
        """Say goodbye, if Redis is there to hear it."""
        with suppress(*QUEUE_ERRORS):
            super().teardown()
