"""What every test stands on: a migrated database, a relay that serves it, and a clock to move."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from django.db import connection, connections
from django.test.utils import setup_databases, teardown_databases
from pytest_django import DjangoDbBlocker

from config.kernel import keys
from outbox import publishing, sentinel
from quotas.selectors import LIMITS_IN_FORCE
from relay.selectors.credentials import YES
from relay.selectors.retention import RETENTION_IN_FORCE
from tests.client import RelayClient
from tests.rules.statement_guard import _statements_are_guarded, statement_guard

__all__ = ["_statements_are_guarded", "statement_guard"]

PROJECT = Path(__file__).resolve().parent.parent
#: Threads of the relay under test: a quarter of them may wait for one queue.
WEB_THREADS = 16

_HOT = (
    "quotas_queueusage",
    "relay_envelope",
    "relay_body",
    "relay_device",
    "relay_provisioner",
    "idempotency_record",
    "outbox_event",
    "outbox_batch",
    "outbox_heartbeat",
    "outbox_queuemark",
    "outbox_lease",
    "outbox_sweeprun",
    "auth_user",
    "django_session",
)
_RELAY_NOW = (
    "CREATE OR REPLACE FUNCTION relay_now() RETURNS timestamptz "
    "LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ SELECT {expression} $$"
)


@pytest.fixture(scope="session", autouse=True)
def _migrated(
    django_test_environment: None,
    django_db_modify_db_settings: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[None]:
    """The test database, open to every test: the relay's transactions must really commit.

    Not pytest-django's `django_db_setup`: that makes a database for tests that carry its mark
    and wraps them in transactions; unmarked ones would run on the database of DATABASE_URL.
    """
    with django_db_blocker.unblock():
        made = setup_databases(verbosity=0, interactive=False, aliases={"default"})
        yield
        _disconnect_everyone()
        teardown_databases(made, verbosity=0)


def _disconnect_everyone() -> None:
    """Whoever a test left connected would keep the database from being dropped."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    connections.close_all()


@pytest.fixture(autouse=True)
def _clean(_migrated: None) -> Iterator[None]:
    """A fresh instance for each test: default retention, no mail, and rates out of the way."""
    assert str(connection.settings_dict["NAME"]).startswith("test_"), "not a test database"
    with connection.cursor() as cursor:
        cursor.execute(_RELAY_NOW.format(expression="clock_timestamp()"))
        for table in _HOT:
            cursor.execute(f"DELETE FROM {table}")
        cursor.execute("SELECT count(*) FROM adminui_auditentry")
        if cursor.fetchone()[0]:
            cursor.execute("TRUNCATE adminui_auditentry")
        cursor.execute("DELETE FROM relay_retentionpolicy WHERE version > 1")
        cursor.execute("DELETE FROM quotas_limitpolicy WHERE version > 1")
        cursor.execute(
            "UPDATE quotas_limitpolicy SET actor_rate = 1000000, address_rate = NULL, "
            "envelope_bytes = 65536, pending_count = 1000, pending_bytes = 67108864, "
            "window_seconds = 10, protocol_versions = '{1}'"
        )
    forget_everything()
    yield
    connection.close()


def forget_everything() -> None:
    """Empty this process's caches."""
    YES.forget_all()
    LIMITS_IN_FORCE.forget()
    RETENTION_IN_FORCE.forget()
    keys.ring.cache_clear()
    publishing.forget_connections()
    sentinel.forget_mark()


class DatabaseClock:
    """Moves the one clock, PostgreSQL's, for every process at once."""

    def shift(self, delta: timedelta) -> None:
        """From now on the clock is `delta` off the real time."""
        seconds = delta / timedelta(seconds=1)
        self._set(f"clock_timestamp() + interval '{seconds} seconds'")

    def freeze(self, rfc3339: str) -> None:
        """From now on the clock stands still."""
        self._set(f"timestamptz '{rfc3339}'")

    def _set(self, expression: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_RELAY_NOW.format(expression=expression))


@pytest.fixture
def clock() -> DatabaseClock:
    """The clock to move; `_clean` puts it right again for the next test."""
    return DatabaseClock()


class RelayProcess:
    """One granian serving the test database."""

    def __init__(self, log: Path, **environment: str) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._environment = environment

    def start(self) -> None:
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                _granian(self.port), cwd=PROJECT, env=self._env(), stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the relay did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _env(self) -> dict[str, str]:
        base = {
            **os.environ,
            "DATABASE_URL": test_database_url(),
            "RELAY_ROLE": "web",
            "RELAY_WEB_THREADS": str(WEB_THREADS),
            "RELAY_BELIEVE_SECONDS": "0",
            "DJANGO_SETTINGS_MODULE": "config.settings",
        }
        return {**base, **self._environment}

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False


def _granian(port: int) -> list[str]:
    options = ["--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port), "--no-ws"]
    threads = ["--workers", "1", "--blocking-threads", "64"]
    return [sys.executable, "-m", "granian", *options, *threads, "config.wsgi:application"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_database_url() -> str:
    """The URL of this worker's test database."""
    parameters = connection.settings_dict
    return (
        f"postgresql://{parameters['USER']}:{parameters['PASSWORD']}"
        f"@{parameters['HOST']}:{parameters['PORT']}/{parameters['NAME']}"
    )


test_database_url.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def relay_process(
    _migrated: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RelayProcess]:
    """A relay that serves this worker's test database over HTTP."""
    process = RelayProcess(tmp_path_factory.mktemp("relay") / "web.log")
    process.start()
    yield process
    process.stop()


@pytest.fixture
def relay(relay_process: RelayProcess) -> Iterator[RelayClient]:
    """A client of that relay."""
    with RelayClient(relay_process.url) as client:
        yield client
