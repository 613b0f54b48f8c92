"""Hosts that do not answer are left alone for a while.

Every call to a host that hangs costs a thread its five seconds. After a few in a row that got
no answer at all, the host counts as away, and its wakes go back to the outbox without a
failure: so an outage of the gateway, or of one push service, neither delays the devices of
others nor turns their wakes into dead letters. When the pause is over a few calls find out
whether it is back. Any answer, even a refusal, shows that it is there.

In the memory of each process: it costs nothing, and a wrong guess is right again in seconds.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Calls in a row without an answer after which a host counts as away, and for how long.
STRIKES = 4
PAUSE_SECONDS = 10.0
_MOST_REMEMBERED = 10_000


@dataclass
class _Record:
    strikes: int = 0
    away_until: float = 0.0


class Hosts:
    """What this process knows of the hosts that it calls."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._records: dict[str, _Record] = {}
        self._lock = threading.Lock()

    def is_away(self, host: str) -> bool:
        """Whether to leave it alone just now."""
        record = self._records.get(host)
        return record is not None and record.away_until > self._monotonic()

    def strikes(self, host: str) -> int:
        """Calls in a row that got no answer."""
        record = self._records.get(host)
        return 0 if record is None else record.strikes

    def note(self, host: str, *, answered: bool) -> None:
        """How a call to it went: any answer counts, whatever it says."""
        with self._lock:
            if answered:
                self._records.pop(host, None)
                return
            if len(self._records) >= _MOST_REMEMBERED:
                self._records.clear()
            record = self._records.setdefault(host, _Record())
            record.strikes += 1
            if record.strikes >= STRIKES:
                record.away_until = self._monotonic() + PAUSE_SECONDS
