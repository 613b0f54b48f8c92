"""Who waits where: the bound on threads that one recipient or one key may hold (DESIGN 4.8).

A request that needs a device's row, or an idempotency key, stands in that line. At most a
quarter of the process's threads have a seat, that is, may sit in PostgreSQL waiting for the
row. As long as the line moves, others wait here for a seat; once it has stopped moving, they
are told at once, so that one stuck row holds a quarter of the threads and no more, and its
neighbours never notice.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from config.kernel.problems import Problem

#: A line in which nobody finished for this long is stuck (seconds). A machine that is short of
#: CPU lets a row rest for a good part of this without anything being wrong.
STUCK_AFTER = 0.4
#: The longest wait for seats in lines that move (seconds).
PATIENCE = 2.0


@dataclass
class _Line:
    taken: int = 0
    waiting: int = 0
    moved_at: float = field(default_factory=time.monotonic)


def patience() -> float:
    """Until when to wait for seats, on the monotonic clock."""
    return time.monotonic() + PATIENCE


class Lines:
    """The lines of one process."""

    def __init__(self, *, seats: int) -> None:
        self._seats = max(1, seats)
        self._lines: dict[object, _Line] = {}
        self._changed = threading.Condition()

    @contextmanager
    def place(
        self, key: object, busy: Callable[[], Exception], *, until: float | None = None
    ) -> Iterator[None]:
        """A seat in the line of `key`, or the error that `busy` makes.

        Whoever needs several seats says `until` when it waits for all of them (`patience()`).
        """
        if not self._sit(key, patience() if until is None else until):
            raise busy()
        moved = False
        try:
            yield
            moved = True
        except Problem as problem:
            moved = not problem.retryable or problem.status == 429
            raise
        finally:
            self._leave(key, moved=moved)

    def _sit(self, key: object, until: float) -> bool:
        with self._changed:
            line = self._lines.setdefault(key, _Line())
            if line.taken == 0:
                line.moved_at = time.monotonic()
            line.waiting += 1
            try:
                seated = self._wait_for_seat(line, until)
            finally:
                line.waiting -= 1
                self._forget_if_empty(key, line)
            return seated

    def _wait_for_seat(self, line: _Line, until: float) -> bool:
        while line.taken >= self._seats:
            now = time.monotonic()
            left = min(until, line.moved_at + STUCK_AFTER) - now
            if left <= 0:
                return False
            self._changed.wait(left)
        line.taken += 1
        return True

    def _leave(self, key: object, *, moved: bool) -> None:
        with self._changed:
            line = self._lines[key]
            line.taken -= 1
            if moved:
                line.moved_at = time.monotonic()
            self._forget_if_empty(key, line)
            self._changed.notify_all()

    def _forget_if_empty(self, key: object, line: _Line) -> None:
        if line.taken == 0 and line.waiting == 0:
            self._lines.pop(key, None)
