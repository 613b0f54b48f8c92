"""`manage.py work`: a worker process on one queue."""

import signal
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from config.commands import RelayCommand, Unavailable, at_least_one, counted
from outbox.services.working import Worker
from outbox.topics import QUEUES


class Command(RelayCommand):
    help = (
        "Work on exactly one queue: with two, RQ loses a job for good when a worker is killed at "
        "the wrong moment. Start as many as you like. Ends cleanly on SIGTERM, after the job "
        "under way."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", choices=QUEUES, help="the queue")
        parser.add_argument(
            "--max-jobs", type=at_least_one, metavar="N", help="end after N jobs, to start afresh"
        )
        parser.add_argument("--burst", action="store_true", help="end when the queue is empty")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.REDIS_URL is None:
            raise Unavailable("REDIS_URL is not set: name the Redis of your queue.", returncode=2)
        worker = Worker(options["queue"], options["max_jobs"], options["burst"])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: worker.stopping.set())
        worker.run()
        worker.end()
        facts = {"queue": worker.queue, "jobs": worker.jobs}
        self.print(f"work {worker.queue} ended after {counted(worker.jobs, 'job')}", facts)
        if options["burst"] and (worker.redis.is_on or worker.storage.is_on):
            away = "Redis" if worker.redis.is_on else "PostgreSQL"
            raise Unavailable(f"{away} does not answer; the jobs wait.")
