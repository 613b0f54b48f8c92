"""Which devices were woken a moment ago, so that a burst of mail is one wake (OUTBOX.md, 6).

Two keys in Redis for a device, both of which end by themselves. The *mark*: who sets it may
wake the device, whoever finds it comes back later, so that any number of workers send one wake
between them. And *who comes again*: of the events that found the mark, one is enough, since
its wake will go out after all of them were there; the others are done.

That event is written down before its settlement, and struck out when it is next handled,
before anything is read about its device. So whoever finds it written down was there before
that reading, and the wake that follows is for its mail too. Where that order cannot be kept,
as Redis is away, nothing is struck out in silence: the batch goes back (RedisAwayError).

Nothing of it is written to PostgreSQL, and no time of anybody's activity is kept longer than
these seconds. While Redis is away each process remembers its own marks, and everybody comes
again: then there are more wakes, never fewer.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from uuid import UUID

import redis

from config.kernel import logs, pseudonyms

#: Seconds that a wake waits for Redis at most, and how long we do without it after that.
REDIS_TIMEOUT = 0.25
REDIS_PAUSE = 2.0
#: How long it counts that an event comes again; it is due in one second.
_AGAIN_MS = 5_000
_MOST_REMEMBERED = 100_000

AWAY = logs.event("wake.redis_away", "error")


class RedisAwayError(Exception):
    """Redis does not answer, and it would have had to."""


class Recent:
    """Marks, and who comes again. With no `milliseconds` every event is a wake."""

    def __init__(self, *, redis_url: str | None, milliseconds: int) -> None:
        self._milliseconds = milliseconds
        self._memory = _Memory(milliseconds / 1000)
        self._redis = _connection(redis_url) if redis_url else None
        self._retry_at = 0.0

    def strike_out(self, events: Iterable[tuple[UUID, UUID]]) -> None:
        """These events (device, event) are here again. Raises RedisAwayError."""
        if self._redis is None or self._milliseconds == 0:
            return
        ours: dict[str, set[bytes]] = defaultdict(set)
        for device_id, event_id in events:
            ours[again_of(device_id)].add(event_id.bytes)
        try:
            written = zip(ours, self._redis.mget(list(ours)), strict=True)
            if over := [name for name, event_id in written if event_id in ours[name]]:
                self._redis.delete(*over)
        except (redis.RedisError, OSError) as error:
            self._pause(error)
            raise RedisAwayError from error

    def take(self, device_id: UUID) -> bool:
        """Whether the device may be woken now; if so, it counts as woken from now on."""
        if self._milliseconds == 0:
            return True
        taken = self._set(mark_of(device_id), b"1", self._milliseconds)
        return self._memory.take(mark_of(device_id)) if taken is None else taken

    def comes_again(self, device_id: UUID, event_id: UUID) -> bool:
        """Whether this event has to come again, as no other of its device does."""
        return self._set(again_of(device_id), event_id.bytes, _AGAIN_MS) is not False

    def _set(self, name: str, value: bytes, milliseconds: int) -> bool | None:
        """Whether the key was free, and is set now; None without Redis."""
        if self._redis is None or time.monotonic() < self._retry_at:
            return None
        try:
            return bool(self._redis.set(name, value, nx=True, px=milliseconds))
        except (redis.RedisError, OSError) as error:
            self._pause(error)
            return None

    def _pause(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + REDIS_PAUSE
        AWAY(error=type(error).__name__)


def mark_of(device_id: UUID) -> str:
    """The key of a device's mark: keyed, so that Redis learns of no device."""
    return f"relay:wake:recent:{pseudonyms.lasting('wake recent', device_id.bytes)}"


def again_of(device_id: UUID) -> str:
    """The key of the event that comes again for a device."""
    return f"relay:wake:again:{pseudonyms.lasting('wake recent', device_id.bytes)}"


def _connection(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url, socket_timeout=REDIS_TIMEOUT, socket_connect_timeout=REDIS_TIMEOUT
    )


class _Memory:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, name: str) -> bool:
        now = time.monotonic()
        with self._lock:
            if self._ends.get(name, now) > now:
                return False
            if len(self._ends) >= _MOST_REMEMBERED:
                self._ends.clear()
            self._ends[name] = now + self._seconds
        return True
