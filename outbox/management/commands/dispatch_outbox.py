"""`manage.py dispatch_outbox`: the dispatcher process."""

import signal
from typing import Any

from django.conf import settings

from config.commands import RelayCommand, Unavailable, counted
from outbox.services.dispatching import Dispatcher


class Command(RelayCommand):
    help = (
        "Hand due events of the outbox to the workers, round after round. Start as many as you "
        "like. While Redis is away the events wait in PostgreSQL. Ends cleanly on SIGTERM."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--once", action="store_true", help="one round, then end")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.REDIS_URL is None:
            raise Unavailable("REDIS_URL is not set: name the Redis of your queue.", returncode=2)
        dispatcher = Dispatcher()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: dispatcher.stopping.set())
        if options["once"]:
            dispatcher.dispatch_once()
        else:
            dispatcher.run()
        dispatcher.end()
        counts = {"rounds": dispatcher.rounds, "published": dispatcher.published}
        self.print(
            f"dispatch_outbox ended after {counted(dispatcher.rounds, 'round')}; "
            f"{counted(dispatcher.published, 'event')} published",
            counts,
        )
        if options["once"] and (dispatcher.storage.is_on or dispatcher.queue.is_on):
            away = (
                "PostgreSQL does not answer" if dispatcher.storage.is_on else "Redis takes no jobs"
            )
            raise Unavailable(f"{away}; the events wait in PostgreSQL.")
