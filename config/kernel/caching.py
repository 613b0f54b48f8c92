"""A value read from the database and believed for a short while, in each process."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from django.conf import settings

T = TypeVar("T")


class TimedValue(Generic[T]):
    """What `read` returned, at most RELAY_BELIEVE_SECONDS old, counted from before it was read."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._held: tuple[float, T] | None = None

    def get(self) -> T:
        """The value; reads it anew when the held one is too old."""
        held = self._held
        now = time.monotonic()
        if held is not None and held[0] > now:
            return held[1]
        value = self._read()
        with self._lock:
            self._held = (now + settings.RELAY_BELIEVE_SECONDS, value)
        return value

    def forget(self) -> None:
        """Read anew at the next call."""
        with self._lock:
            self._held = None
