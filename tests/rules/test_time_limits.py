"""Time limits by role, and the watchdog for what they do not end (DESIGN rule 4.8)."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from django.db import DatabaseError, InterfaceError, connection

from config import settings as settings_module
from config.kernel import watchdog
from config.kernel.watchdog import Watchdog
from relay.models import Envelope
from tests.client import make_device, new_key
from tests.concurrency.crowd import Background
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import code_of
from tests.concurrency.oracle import assert_sound
from tests.concurrency.outside import connect
from tests.conftest import PROJECT, test_database_url
from tests.rules.planting import run

_SHOW = """
import django, json
django.setup()
from django.db import connection
names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout",
         "application_name", "synchronous_commit")
with connection.cursor() as cursor:
    found = {}
    for name in names:
        cursor.execute(f"SHOW {name}")
        found[name] = cursor.fetchone()[0]
options = connection.get_connection_params()
found["connect_timeout"] = options["connect_timeout"]
found["tcp_user_timeout"] = options["tcp_user_timeout"]
print(json.dumps(found))
"""


def _shown(role: str) -> dict[str, object]:
    """What PostgreSQL says on a connection of a process of this role."""
    environment = {
        **os.environ,
        "RELAY_ROLE": role,
        "DATABASE_URL": test_database_url(),
        "DJANGO_SETTINGS_MODULE": "config.settings",
    }
    done = subprocess.run(
        [sys.executable, "-c", _SHOW],
        cwd=PROJECT, env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def test_a_web_process_has_the_limits_of_the_rule() -> None:
    assert _shown("web") == {
        "lock_timeout": "2s",
        "statement_timeout": "5s",
        "idle_in_transaction_session_timeout": "10s",
        "application_name": "relay-web",
        "synchronous_commit": "on",
        "connect_timeout": 3,
        "tcp_user_timeout": 8000,
    }


def test_the_watchdog_ends_a_request_before_ten_seconds() -> None:
    assert watchdog.LIMIT + watchdog._LOOK_EVERY < 10


# --- The watchdog ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_sleeper_left() -> Iterator[None]:
    """A backend whose client was cut off sleeps on; it must not hold rows in the next test."""
    yield
    with connect(autocommit=True) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active' "
            "AND datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )


def _sleep_in_postgresql() -> tuple[float, type[BaseException] | None]:
    """How long a statement that takes ten seconds took, and how it ended."""
    began = time.monotonic()
    try:
        run("SELECT pg_sleep(10)")
    except (DatabaseError, InterfaceError) as error:
        return time.monotonic() - began, type(error)
    return time.monotonic() - began, None


def test_a_statement_that_no_server_timer_ends_is_cut_and_the_thread_recovers() -> None:
    dog = Watchdog(limit=1)

    def request() -> tuple[float, type[BaseException] | None, list[tuple[int]]]:
        run("SET statement_timeout = 0")
        with dog.watching():
            seconds, error = _sleep_in_postgresql()
        connection.close_if_unusable_or_obsolete()  # as Django does after a request
        return seconds, error, run("SELECT 1")

    seconds, error, afterwards = Background(request).result()
    assert error is not None
    assert 0.9 < seconds < 5  # 1.25 s by design; a loaded machine
    assert afterwards == [(1,)]


def test_a_server_process_that_is_stopped_is_given_up_and_the_thread_recovers() -> None:
    """None of the server's own timers fires in it."""
    dog = Watchdog(limit=1)

    def request() -> tuple[float, type[BaseException] | None, list[tuple[int]]]:
        [(pid,)] = run("SELECT pg_backend_pid()")
        # Whatever becomes of this test: a stopped backend holds up every DROP DATABASE.
        subprocess.Popen(["sh", "-c", f"sleep 8; kill -CONT {pid} 2>&-"], start_new_session=True)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            with dog.watching():
                _, error = _sleep_in_postgresql()
            seconds = time.monotonic() - began
        finally:
            os.kill(pid, signal.SIGCONT)
        connection.close_if_unusable_or_obsolete()
        return seconds, error, run("SELECT 1")

    try:
        seconds, error, afterwards = Background(request).result()
    except (PermissionError, ProcessLookupError):
        pytest.skip("PostgreSQL's processes are not ours to stop")
    assert error is not None
    assert 0.9 < seconds < 5
    assert afterwards == [(1,)]


def test_only_the_one_that_is_over_its_time_is_cut() -> None:
    dog = Watchdog(limit=1)

    def slow() -> type[BaseException] | None:
        with dog.watching():
            return _sleep_in_postgresql()[1]

    def busy() -> int:
        """Many short requests, longer in all than the limit."""
        until, done = time.monotonic() + 2, 0
        while time.monotonic() < until:
            with dog.watching():
                run("SELECT pg_sleep(0.05)")
            done += 1
        return done

    one, other = Background(slow), Background(busy)
    assert one.result() is not None
    assert other.result() > 5


def test_a_thread_that_is_no_longer_watched_is_left_alone() -> None:
    dog = Watchdog(limit=0.3)

    def request() -> list[tuple[int]]:
        with dog.watching():
            run("SELECT 1")
        time.sleep(0.8)
        return run("SELECT 2")  # on the same connection

    assert Background(request).result() == [(2,)]


def test_one_thread_watches_however_many_requests_there_are() -> None:
    dog = Watchdog(limit=5)
    before = sum(thread.name == "watchdog" for thread in threading.enumerate())
    for _ in range(5):
        with dog.watching():
            run("SELECT 1")
    after = sum(thread.name == "watchdog" for thread in threading.enumerate())
    assert after - before == 1


class _ClosedMeanwhile:
    """A connection that is closed between two looks of the watchdog at it."""

    closed = False

    def __init__(self) -> None:
        gone = connect()
        gone.close()
        self.pgconn = gone.pgconn  # asked for its socket, it raises psycopg's OperationalError


def test_a_watchdog_that_meets_a_surprise_goes_on_watching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dog = Watchdog(limit=0.3)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    def request() -> type[BaseException] | None:
        run("SET statement_timeout = '4s'")
        real, connection.connection = connection.connection, _ClosedMeanwhile()
        with dog.watching():
            until = time.monotonic() + 10
            while dog._watched and time.monotonic() < until:
                time.sleep(0.01)
        connection.connection = real
        with dog.watching():
            return _sleep_in_postgresql()[1]

    began = time.monotonic()
    assert Background(request).result() is not None
    assert time.monotonic() - began < 3.5


def _with_a_slow_statement(call: Callable[[], object]) -> object:
    def slow(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        if 'INTO "outbox_event"' in sql:
            run("SELECT pg_sleep(10)")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(slow):
        return call()


def _with_a_slow_commit(call: Callable[[], object]) -> object:
    run(
        "CREATE FUNCTION tests_slow_commit() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(10); RETURN NULL; END $$"
    )
    run(
        "CREATE CONSTRAINT TRIGGER tests_slow_commit AFTER INSERT ON outbox_event "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tests_slow_commit()"
    )
    try:
        return call()
    finally:
        with connect(autocommit=True) as session:  # it sleeps on, and holds the table
            session.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND query = 'COMMIT' AND state = 'active'"
            )
            session.execute("DROP TRIGGER tests_slow_commit ON outbox_event")
            session.execute("DROP FUNCTION tests_slow_commit()")


@pytest.mark.parametrize("slow", [_with_a_slow_statement, _with_a_slow_commit])
def test_a_request_that_hangs_in_postgresql_is_503_and_the_key_resolves_it(
    inside: InsideClient, monkeypatch: pytest.MonkeyPatch, slow: Callable[..., object]
) -> None:
    monkeypatch.setattr(watchdog, "WATCHDOG", Watchdog(limit=1))
    sender, recipient, key, message_id = make_device(), make_device(), new_key(), uuid4()

    def submit():  # type: ignore[no-untyped-def]
        return inside.submit(sender, recipient, key=key, message_id=message_id)

    began = time.monotonic()
    answer = slow(submit)
    assert time.monotonic() - began < 8
    assert code_of(answer) == "STORAGE_UNAVAILABLE"  # type: ignore[arg-type]
    assert not Envelope.objects.exists()
    with connect(autocommit=True) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE state = 'active' "
            "AND datname = current_database() AND pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
    assert submit().status_code == 201
    assert_sound()


def test_an_operators_own_options_come_on_top_of_the_limits() -> None:
    url = "postgresql://relay@127.0.0.1/relay?options=-c%20search_path%3Drelay"
    options = str(settings_module._database(url)["OPTIONS"]["options"])  # type: ignore[index]
    assert "-c statement_timeout=" in options
    assert "-c synchronous_commit=on" in options
    assert options.endswith("-c search_path=relay")
