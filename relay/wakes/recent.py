"""Which devices were woken a moment ago, so that a burst of mail is one wake (OUTBOX.md, 6).

A mark in Redis that ends by itself: who sets it may wake the device, whoever finds it comes
back later. So any number of workers send one wake between them, nothing is written to
PostgreSQL, and no time of anybody's activity is kept longer than these two seconds. When
Redis is away each process remembers for itself: then there are more wakes, never fewer.
"""

import threading
import time
from uuid import UUID

import redis

from config.kernel import logs, pseudonyms

#: Seconds that a wake waits for Redis at most, and how long we do without it after that.
REDIS_TIMEOUT = 0.25
REDIS_PAUSE = 2.0
_MOST_REMEMBERED = 100_000

AWAY = logs.event("wake.redis_away", "error")


class Recent:
    """The marks: Redis while it answers, this process's memory while it does not."""

    def __init__(self, *, redis_url: str | None, milliseconds: int) -> None:
        self._milliseconds = milliseconds
        self._memory = _Memory(milliseconds / 1000)
        self._redis = _connection(redis_url) if redis_url else None
        self._retry_at = 0.0

    def take(self, device_id: UUID) -> bool:
        """Whether the device may be woken now; if so, it counts as woken from now on."""
        if self._milliseconds == 0:
            return True
        name = mark_of(device_id)
        if self._redis is not None and time.monotonic() >= self._retry_at:
            try:
                return bool(self._redis.set(name, b"1", nx=True, px=self._milliseconds))
            except (redis.RedisError, OSError) as error:
                self._retry_at = time.monotonic() + REDIS_PAUSE
                AWAY(error=type(error).__name__)
        return self._memory.take(name)


def mark_of(device_id: UUID) -> str:
    """The key of a device's mark: keyed, so that Redis learns of no device."""
    return f"relay:wake:recent:{pseudonyms.lasting('wake recent', device_id.bytes)}"


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
