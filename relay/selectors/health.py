"""Whether this process can do its work."""

import threading
from dataclasses import dataclass
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor

_REDIS_TIMEOUT = 0.5


@dataclass(frozen=True)
class Readiness:
    """What was found, each "ok" or a few words."""

    postgresql: str
    migrations: str
    redis: str

    @property
    def ready(self) -> bool:
        """Mail can be stored."""
        return {self.postgresql, self.migrations} == {"ok"}

    def document(self) -> dict[str, Any]:
        """The body of /readyz."""
        status = "unavailable" if not self.ready else "ok" if self.redis == "ok" else "degraded"
        checks = {
            "postgresql": self.postgresql,
            "migrations": self.migrations,
            "redis": self.redis,
        }
        return {"status": status, "checks": checks}


class _Migrations:
    """Applied migrations stay applied: looked up until they are, then believed."""

    def __init__(self) -> None:
        self._applied = False
        self._lock = threading.Lock()

    def are_applied(self) -> bool:
        if not self._applied:
            with self._lock:
                executor = MigrationExecutor(connection)
                targets = executor.loader.graph.leaf_nodes()
                self._applied = not executor.migration_plan(targets)
        return self._applied


MIGRATIONS = _Migrations()


def readiness() -> Readiness:
    """Look at PostgreSQL, the migrations and Redis."""
    redis_state = _redis()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        if not MIGRATIONS.are_applied():
            return Readiness("ok", "not applied", redis_state)
    except (DatabaseError, InterfaceError):
        return Readiness("unreachable", "unknown", redis_state)
    return Readiness("ok", "ok", redis_state)


def _redis() -> str:
    if settings.REDIS_URL is None:
        return "not set"
    client = redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=_REDIS_TIMEOUT, socket_connect_timeout=_REDIS_TIMEOUT
    )
    try:
        client.ping()
    except (redis.RedisError, OSError):
        return "unreachable"
    finally:
        client.close()
    return "ok"
