"""`manage.py sweep`: everything that is due, now. Needs no Redis and no worker."""

import signal
import threading
from typing import Any

from config.commands import Refused, RelayCommand, table
from config.kernel import clock
from relay.services.sweeping import Pace, sweep_all
from relay.services.sweeps import SWEEPS


class Command(RelayCommand):
    help = (
        "Run every sweep now: expire what is due, empty closed queues, remove the ciphertext of "
        "what ended, lapse receipts, prune idempotency records, forget old batches. Several at "
        "once are safe, and so is Ctrl-C. The pace follows RELAY_SWEEP_BATCH, "
        "RELAY_SWEEP_ROWS_PER_SECOND and RELAY_SWEEP_PAUSE_MS."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        stopping = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopping.set())
        clock.read()  # a database that is away is one line, not one for each sweep
        reports = sweep_all(pace=Pace(), stop=stopping.is_set, most_seconds=float("inf"))
        rows = [
            (report.name, report.rows, f"{report.seconds:.2f}", report.busy or "")
            for report in reports
        ]
        numbers = ["rows", "seconds", "busy shards"]
        self.print(table(["sweep", *numbers], rows, numbers=numbers), {"sweeps": reports})
        if len(reports) < len(SWEEPS) or stopping.is_set():
            raise Refused("Not every sweep came to its end; run it again.")
