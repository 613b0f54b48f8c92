"""No request outlives ten seconds, whatever PostgreSQL does (DESIGN rule 4.8).

The server's own timers end a slow statement or a lock wait, but not a COMMIT that waits for a
standby, and none of them fires in a server that is stopped. So a thread here looks after the
requests under way, and shuts the database socket of one that is over its time; the waiting
driver then sees a closed connection, and the client gets a 503 that the same key resolves.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from config.kernel import logs

#: Seconds that a request may take.
LIMIT = 9.5
_LOOK_EVERY = 0.25

CUT = logs.event("watchdog.cut", "seconds", level=logging.ERROR)


class Watchdog:
    """One thread that looks after the requests of a process."""

    def __init__(self, *, limit: float = LIMIT) -> None:
        self._limit = limit
        self._watched: dict[int, tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._pid = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Bound the database work of the calling thread."""
        self._ensure_running()
        me = threading.get_ident()
        wrapper = connections["default"]
        with self._lock:
            self._watched[me] = (time.monotonic() + self._limit, wrapper)
        try:
            yield
        finally:
            with self._lock:
                self._watched.pop(me, None)

    def _ensure_running(self) -> None:
        if self._pid != os.getpid():  # threads do not survive a fork
            with self._lock:
                if self._pid != os.getpid():
                    self._pid = os.getpid()
                    threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY)
            with self._lock:
                now = time.monotonic()
                for thread, (deadline, wrapper) in list(self._watched.items()):
                    if deadline <= now:
                        del self._watched[thread]
                        _cut(wrapper)
                        CUT(seconds=self._limit)


def _cut(wrapper: Any) -> None:
    """Shut the connection's socket, so that whoever waits on it wakes up with an error."""
    try:
        held = wrapper.connection
        duplicate = os.dup(held.pgconn.socket)
    except Exception:
        return  # no connection, or its thread closes it just now: nothing to wake up
    with socket.socket(fileno=duplicate) as line:
        try:
            line.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


WATCHDOG = Watchdog()
