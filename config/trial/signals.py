"""Signals as something that a loop can wait for.

A handler that raises could strike between a fork and the line that remembers the child. So
the handlers only count, a wake-up pipe ends the wait, and the loop asks when it is ready to.
"""

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Counts requests to stop, and wakes at the end of a child. Main thread only."""

    def __init__(self) -> None:
        self.stops = 0
        self._former: dict[signal.Signals, Any] = {}
        self._reader = self._writer = self._former_fd = -1

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        for descriptor in (self._reader, self._writer):
            os.set_blocking(descriptor, False)
        self._former_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in _STOP:
            # Under nohup SIGHUP is ignored already, and whoever asked for that means it.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._former[number] = signal.signal(number, self._count_stop)
        # Without a handler the end of a child would not reach the wake-up pipe.
        self._former[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self._reader)
        os.close(self._writer)

    def _count_stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1

    def pause(self, seconds: float) -> None:
        """Sleep at most so long; any signal ends it."""
        ready, _, _ = select.select([self._reader], [], [], max(seconds, 0))
        if ready:
            os.read(self._reader, 4096)

    def wait(self, seconds: float) -> None:
        """Sleep, then `check`."""
        self.check()
        self.pause(seconds)
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt when a stop was asked for, by whichever signal."""
        if self.stops:
            raise KeyboardInterrupt
