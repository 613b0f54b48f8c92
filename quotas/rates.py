"""How often a caller may submit (PROTOCOL section 8): by actor, and by address.

Windows slide, on Redis, atomically. When Redis is away each process limits by itself: rates
may fail open to that, the storage quotas never do. Keys are keyed hashes, so Redis learns
neither callers nor addresses.
"""

import hmac
import math
import threading
import time
from dataclasses import dataclass
from hashlib import sha256

import redis
from django.conf import settings
from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from config.kernel import keys, logs
from config.kernel.addresses import network_of
from config.kernel.problems import RateLimited
from quotas.selectors import Limits

#: Seconds that a request waits for Redis at most, and how long we do without it after that.
REDIS_TIMEOUT = 0.25
REDIS_PAUSE = 2.0

AWAY = logs.event("rates.redis_away", "error")


@dataclass(frozen=True)
class _Rule:
    subject: str
    amount: int
    window: int


def charge(*, actor: str, address: str, limits: Limits, submits: int = 1) -> None:
    """Count `submits` against the caller's rates. Raises RateLimited, with a time to wait."""
    rules = [_Rule(_subject("actor", actor), limits.actor_rate, limits.window_seconds)]
    if limits.address_rate is not None:
        subject = _subject("address", network_of(address))
        rules.append(_Rule(subject, limits.address_rate, limits.window_seconds))
    for rule in rules:
        LIMITER.charge(rule, submits)


def _subject(kind: str, value: str) -> str:
    secret = keys.current(keys.Purpose.RATE).secret
    return hmac.new(secret, f"{kind}\0{value}".encode(), sha256).hexdigest()[:32]


class _Limiter:
    """Redis while it answers, this process's memory while it does not.

    After a pause one request alone finds out whether Redis is back: if all of them tried, a
    Redis that hangs would cost every thread its time limit, again and again.
    """

    def __init__(self) -> None:
        self._memory = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._shared: SlidingWindowCounterRateLimiter | None = None
        self._away = False
        self._retry_at = 0.0
        self._lock = threading.Lock()

    def charge(self, rule: _Rule, submits: int) -> None:
        item = RateLimitItemPerSecond(rule.amount, rule.window, namespace="rate")
        shared = self._shared_now()
        if shared is not None:
            try:
                self._hit(shared, item, rule.subject, submits)
            except (redis.RedisError, OSError) as error:
                self._pause(error)
            except RateLimited:
                self._away = False
                raise
            else:
                self._away = False
                return
        self._hit(self._memory, item, rule.subject, submits)

    def _hit(
        self,
        limiter: SlidingWindowCounterRateLimiter,
        item: RateLimitItemPerSecond,
        subject: str,
        submits: int,
    ) -> None:
        if limiter.hit(item, subject, cost=submits):
            return
        if submits > 1:  # a whole window makes room for all that can ever fit at once
            raise RateLimited(retry_after=item.get_expiry())
        reset_at = limiter.get_window_stats(item, subject).reset_time
        raise RateLimited(retry_after=max(1, math.ceil(reset_at - time.time())))

    def _shared_now(self) -> SlidingWindowCounterRateLimiter | None:
        if settings.REDIS_URL is None or not self._may_try():
            return None
        if self._shared is None:
            with self._lock:
                self._shared = self._shared or SlidingWindowCounterRateLimiter(_redis_storage())
        return self._shared

    def _may_try(self) -> bool:
        """Whether to ask Redis: always, or after a pause, by one alone."""
        if not self._away:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._retry_at:
                return False
            self._retry_at = now + REDIS_PAUSE
            return True

    def _pause(self, error: Exception) -> None:
        self._away, self._retry_at = True, time.monotonic() + REDIS_PAUSE
        AWAY(error=type(error).__name__)


def _redis_storage() -> RedisStorage:
    return RedisStorage(
        settings.REDIS_URL,
        key_prefix="relay",
        socket_timeout=REDIS_TIMEOUT,
        socket_connect_timeout=REDIS_TIMEOUT,
    )


LIMITER = _Limiter()
