"""PostgreSQL under the workers: connections cut, and a database that takes none for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection

from outbox import entries, publishing
from outbox.models import Event
from outbox.services import handling
from outbox.services.settling import Settled
from outbox.services.working import Worker
from tests.conftest import test_database_url
from tests.outbox.conftest import Register
from tests.outbox.kit import (
    Effects,
    OwnValkey,
    Processes,
    add_events,
    dispatch,
    event,
    wait_until,
    work,
)

pytestmark = pytest.mark.usefixtures("valkey")


def is_drained() -> bool:
    return not Event.objects.exists()


def cut_the_worker() -> int:
    """End the connections of forked processes to this database; how many there were.

    They have the name of ours. A web server that other tests left running has another.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() "
            "AND application_name = current_setting('application_name')"
        )
        return len(cursor.fetchall())


@contextmanager
def nobody_new() -> Iterator[None]:
    """The database takes no new connection."""
    name = connection.settings_dict["NAME"]
    elsewhere = test_database_url().rsplit("/", 1)[0] + "/postgres"
    with psycopg.connect(elsewhere, autocommit=True) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            yield
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_a_worker_whose_connection_was_cut_loses_no_job(
    register: Register, effects: Effects, processes: Processes, valkey: OwnValkey
) -> None:
    """No lease is waited for: the cut is noticed before a job is taken."""
    register(effects.all_done)
    processes.worker()
    add_events(1)
    dispatch()
    wait_until(is_drained, 5, "the worker to be at work")
    for _ in range(3):
        assert cut_the_worker() == 1
        add_events(5)
        dispatch()
        wait_until(is_drained, 5, "the events to be handled")
    assert len(effects.events) == 16


def test_a_worker_without_postgresql_takes_no_job(
    register: Register, effects: Effects, processes: Processes, valkey: OwnValkey
) -> None:
    register(effects.all_done)
    worker = processes.worker()
    wanted = add_events(5)
    dispatch()
    wait_until(is_drained, 5, "the worker to be at work")
    wanted += add_events(5)
    with nobody_new():
        cut_the_worker()
        dispatch()
        for _ in range(3):  # it looks once a second
            seen = last_sign(valkey)
            wait_until(lambda seen=seen: last_sign(valkey) > seen, 5, "the worker to look again")
        assert valkey.client.llen("rq:queue:wake") == 1
    wait_until(is_drained, 5, "the outbox to be drained")
    assert sorted(effects.events) == sorted(wanted)
    assert worker.returncode is None


def last_sign(valkey: OwnValkey) -> bytes:
    """When the worker last spoke to Redis, whatever PostgreSQL does."""
    [name] = valkey.client.smembers("rq:workers")
    return bytes(valkey.client.hget(name, "last_heartbeat"))


def test_a_job_cut_short_outside_its_handler_leaves_a_connection_that_works(
    register: Register, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit strikes while PostgreSQL is being asked; the next job is none the worse."""

    def oversleeps(*_: object, **__: object) -> Settled:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")
        return Settled()

    register(effects.all_done)
    [first] = add_events(1)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "JOB_TIMEOUT", 1)
        patch.setattr(handling, "settle", oversleeps)
        dispatch()
        work()
    assert event(first).starts == 1
    [second] = add_events(1)
    dispatch()
    assert work().jobs == 1
    assert effects.events == [first, second]


def test_a_job_leaves_no_connection_behind_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    @entries.entry
    def fails(argument: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        seen.append(connection.connection is not None)
        raise ValueError(argument)

    monkeypatch.setattr(entries, "_names", set(entries._names))
    fails({})
    assert (seen, connection.connection) == ([True], None)


def test_a_burst_without_postgresql_ends_and_leaves_the_job(
    register: Register, effects: Effects, valkey: OwnValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    def away() -> None:
        raise OperationalError("gone")

    register(effects.all_done)
    add_events(1)
    dispatch()
    worker = Worker("wake", burst=True)
    with monkeypatch.context() as patch:
        patch.setattr(worker.pulse, "beat", away)
        worker.run()
    assert (worker.jobs, worker.storage.is_on) == (0, True)
    assert valkey.client.llen("rq:queue:wake") == 1
    worker.run()
    assert (worker.jobs, worker.storage.is_on) == (1, False)
