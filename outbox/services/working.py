"""A worker: one queue, one process, JSON (OUTBOX.md, "RQ: traps, and what answers them")."""

import logging
import os
import threading
import time
from uuid import UUID, uuid4

from django.db import DatabaseError, InterfaceError, close_old_connections
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from config.kernel import logs
from outbox import machinery, publishing

#: Seconds after which a worker looks again when Redis was away.
_LOOK_AGAIN = 2.0

QUEUE_AWAY = logs.event("worker.queue_away", "queue", "error", level=logging.WARNING)


class _Worker(SimpleWorker):
    """RQ's worker with the database connection looked after around each job.

    It runs jobs in its own process: a fork would share the parent's connection, and costs a
    hundred times what a batch does.
    """

    max_connection_wait_time = int(_LOOK_AGAIN)

    def perform_job(self, *args: object, **kwargs: object) -> bool:
        close_old_connections()
        try:
            return bool(super().perform_job(*args, **kwargs))  # type: ignore[arg-type]
        finally:
            close_old_connections()


def work(*, queue: str, max_jobs: int | None, stopping: threading.Event) -> int:
    """Work on one queue until `stopping`, or `max_jobs` jobs are done; returns how many.

    Exactly one queue: with several RQ pops in a way that loses a job for good when the worker
    dies at that moment.
    """
    process_id = uuid4()
    done = 0
    beating = threading.Thread(
        target=_beat, args=(f"work {queue}", process_id, stopping), daemon=True
    )
    beating.start()
    while not stopping.is_set() and (max_jobs is None or done < max_jobs):
        worker = _Worker(
            [publishing.queue(queue)],
            connection=publishing.connection(),
            serializer=JSONSerializer,
            name=f"{queue}-{os.getpid()}-{uuid4().hex[:8]}",
            work_horse_killed_handler=None,
        )
        try:
            worker.work(max_jobs=max_jobs, logging_level="WARNING")
        except Exception as error:
            QUEUE_AWAY(queue=queue, error=type(error).__name__)
            stopping.wait(_LOOK_AGAIN)
        done += int(worker.successful_job_count + worker.failed_job_count)
    return done


def _beat(name: str, process_id: UUID, stopping: threading.Event) -> None:
    while not stopping.is_set():
        try:
            machinery.beat(name=name, process_id=process_id)
        except (DatabaseError, InterfaceError):
            pass
        time.sleep(1)
