"""`manage.py tick`: the clock process."""

import signal
from typing import Any

from django.conf import settings

from config.commands import RelayCommand, Unavailable, counted
from relay.services.ticking import Clock


class Command(RelayCommand):
    help = (
        "See to the sweeps every RELAY_TICK_SECONDS: the maintenance workers run them, and this "
        "process itself when Redis or the workers are away or behind. Under a lease in "
        "PostgreSQL: start as many as you like, one works and the others stand by. Ends cleanly "
        "on SIGTERM."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--once", action="store_true", help="one round, then end")

    def handle(self, *args: Any, **options: Any) -> None:
        clock = Clock.new()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: clock.stopping.set())
        works = False
        while not clock.stopping.is_set():
            works = clock.tick()
            if options["once"]:
                break
            clock.stopping.wait(settings.RELAY_TICK_SECONDS)
        clock.let_go()
        rounds, rows = counted(clock.rounds, "round"), counted(clock.rows, "row")
        facts = {"rounds": clock.rounds, "rows": clock.rows}
        self.print(f"tick ended after {rounds}; {rows} swept", facts)
        if options["once"] and clock.storage.is_on:
            raise Unavailable("PostgreSQL does not answer.")
        if options["once"] and not works:
            self.note("Another process is the clock just now, so there was nothing to do.")
