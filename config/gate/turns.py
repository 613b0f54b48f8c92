"""Few threads that work, for the many that wait.

Each working thread has a connection to PostgreSQL, so their number is what PostgreSQL sees of
this process, and what the bounds on waiters are parts of (DESIGN rule 4.8).
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

Environ = dict[str, Any]
#: Status line, headers and the whole body.
Response = tuple[str, list[tuple[str, str]], bytes]


@dataclass
class _Turn:
    environ: Environ
    asked_at: float
    done: threading.Lock = field(default_factory=threading.Lock)
    response: Response | None = None


class Turns:
    """The working threads of one process. `work` answers a request and must not raise."""

    def __init__(self, work: Callable[[Environ, float], Response], *, threads: int) -> None:
        self._work = work
        self._threads = threads
        self._waiting: SimpleQueue[_Turn] = SimpleQueue()
        self._starting = threading.Lock()
        self._pid = 0

    def take(self, environ: Environ) -> Response:
        """Have a request answered by a working thread; returns when it was."""
        self._ensure_running()
        turn = _Turn(environ, time.monotonic())
        turn.done.acquire()
        self._waiting.put(turn)
        turn.done.acquire()  # released by the working thread
        assert turn.response is not None
        return turn.response

    def _ensure_running(self) -> None:
        if self._pid != os.getpid():  # threads do not survive a fork
            with self._starting:
                if self._pid != os.getpid():
                    for number in range(self._threads):
                        name = f"work-{number + 1}"
                        threading.Thread(target=self._run, name=name, daemon=True).start()
                    self._pid = os.getpid()

    def _run(self) -> None:
        while True:
            turn = self._waiting.get()
            try:
                turn.response = self._work(turn.environ, time.monotonic() - turn.asked_at)
            finally:
                turn.done.release()
