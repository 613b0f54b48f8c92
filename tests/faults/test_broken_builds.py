"""The oracle fails builds that are broken on purpose, and passes the sound one (FAULTS).

That it finds each planted fault is in test_kit.py; here the fault is one of the code, and a
crash at the wrong moment brings it out.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection
from pytest_django import Settings

from config.kernel import failpoints
from outbox import publishing
from outbox.services.working import Worker
from relay.wakes import wiring
from tests.client import new_key
from tests.concurrency.inside import InsideClient, reference_path
from tests.faults import broken
from tests.faults.load import Load, ciphertext_of
from tests.faults.verdict import verdict
from tests.faults.world import DISPATCHER, GATEWAY_SECRET, WAKES, WEB, World
from tests.outbox.kit import Processes, wait_until

__all__ = ["reference_path"]

Build = Callable[[], AbstractContextManager[None]]
KILLED = -signal.SIGKILL


@pytest.fixture(autouse=True)
def _running(world: World, settings: Settings) -> None:
    world.start(WEB, DISPATCHER)
    # What a copy of this process works with.
    settings.REDIS_URL = world.redis.url
    settings.WAKE_EGRESS_ALLOW = ["127.0.0.1"]
    settings.WAKE_GATEWAY_URL = world.gateway.url("/wake")
    settings.WAKE_GATEWAY_SECRET = GATEWAY_SECRET
    wiring.parts.cache_clear()
    publishing.forget_connections()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Processes that are gone when the test is over."""
    started = Processes(tmp_path)
    yield started
    started.kill_all()
    wiring.parts.cache_clear()
    publishing.forget_connections()


def words(found: list[str]) -> list[str]:
    return [text.partition(":")[0] for text in found]


def one_sleeper(load: Load) -> None:
    """Only who must be woken gets mail."""
    load.mailboxes = [each for each in load.mailboxes if each.handle]


@pytest.mark.parametrize(
    ("build", "found"),
    [(nullcontext, []), (broken.deletes_before_the_handler, ["not woken"])],
    ids=["sound", "deletes before the handler"],
)
def test_an_event_deleted_before_its_handler_is_a_wake_that_never_comes(
    world: World, load: Load, processes: Processes, build: Build, found: list[str]
) -> None:
    one_sleeper(load)
    world.kill(DISPATCHER)
    for _ in range(5):
        assert load.submit().status == 201
    world.start(DISPATCHER)  # all of them in one batch

    def work() -> None:
        with build():
            Worker("wake").run()

    # The worker dies after the start, before the handler.
    assert processes.run(work, "worker.started=kill").wait() == KILLED
    world.start(WAKES)
    world.drain()
    world.kill(WAKES)
    assert words(verdict(load)) == found


@pytest.mark.parametrize(
    ("build", "found"),
    [(nullcontext, []), (broken.takes_the_lowest_ids_too, ["not woken"])],
    ids=["sound", "id <= max"],
)
def test_settling_by_the_highest_id_loses_what_committed_late(
    world: World, load: Load, processes: Processes, build: Build, found: list[str]
) -> None:
    """A transaction that took its id early commits while later ones are being handled."""
    one_sleeper(load)
    early, late = load.mailboxes[:2]
    load.mailboxes = [late]
    assert load.submit().status == 201
    wait_until(lambda: world.redis.client.llen("rq:queue:wake"), 5, "the batch to be published")
    world.kill(DISPATCHER)
    _commit_an_event_with_a_lower_id(world, load, early)

    def work() -> None:
        with build():
            Worker("wake", burst=True).run()

    assert processes.run(work).wait() == 0
    world.start(WAKES, DISPATCHER)
    world.drain()
    world.kill(WAKES)
    load.mailboxes = [early, late]
    assert words(verdict(load)) == found


def _commit_an_event_with_a_lower_id(world: World, load: Load, mailbox) -> None:  # type: ignore[no-untyped-def]
    load.mailboxes = [mailbox]
    assert load.submit().status == 201
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE outbox_event SET event_id = '00000000-0000-7000-8000-000000000001' "
            "WHERE device_id = %s",
            [mailbox.device.id],
        )
        assert cursor.rowcount == 1


@pytest.mark.usefixtures("reference_path")
@pytest.mark.parametrize(
    ("build", "found"),
    [(nullcontext, []), (broken.keeps_its_keys_apart, ["a key without its answer"])],
    ids=["sound", "keys apart"],
)
def test_a_key_claimed_apart_from_its_effect_is_found(
    world: World, load: Load, processes: Processes, build: Build, found: list[str]
) -> None:
    """A crash in between leaves a key that says "in progress" for ever (idempot-js#185)."""
    one_sleeper(load)
    mailbox = load.mailboxes[0]
    load.mailboxes = [mailbox]
    world.start(WAKES)
    assert load.submit().status == 201
    message_id = uuid4()

    def die_at_the_envelope(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        if 'INSERT INTO "relay_envelope"' in sql:
            failpoints.arm("worker.popped=kill", in_trial=True)
            failpoints.hit("worker.popped")
        return execute(sql, params, many, context)

    def serve() -> None:
        with build(), connection.execute_wrapper(die_at_the_envelope), InsideClient() as inside:
            inside.submit(
                load.sender,
                mailbox.device,
                ciphertext_of(message_id),
                message_id=message_id,
                key=new_key(),
            )

    assert processes.run(serve).wait() == KILLED
    world.drain()
    world.kill(WAKES)
    assert words(verdict(load)) == found


@pytest.mark.usefixtures("reference_path")
def test_a_promise_that_was_not_kept_is_found(world: World, load: Load) -> None:
    load.mailboxes = [each for each in load.mailboxes if each.reads]
    assert load.submit().status == 201
    with broken.answers_before_it_commits(), InsideClient() as inside:
        real, load.client = load.client, inside
        assert load.submit().status == 201
        load.client = real
    world.start(WAKES)
    world.drain()
    world.kill(WAKES)
    assert words(verdict(load))[:2] == ["accepted but not stored", "missing"]


def test_commits_that_do_not_wait_for_the_disk_are_found(world: World, load: Load) -> None:
    """With synchronous_commit off, what was promised a moment before a crash is gone."""
    world.kill(WEB, DISPATCHER)
    with connection.cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        cursor.execute("SELECT pg_reload_conf()")
    try:
        url = world.environment["DATABASE_URL"]
        options = "-c%20synchronous_commit%3Doff"
        world.start(WEB, DATABASE_URL=f"{url}&options={options}")
        load.mailboxes = [each for each in load.mailboxes if each.reads]
        for _ in range(10):
            assert load.submit().status == 201
        world.postgres.stop_immediately()
        world.postgres.start()
        connection.close()
        world.kill(WEB)
        world.start(WEB)
        found = words(verdict(load))
        assert found[:1] == ["accepted but not stored"]
    finally:
        world.kill(WEB)
        with connection.cursor() as cursor:
            cursor.execute("ALTER SYSTEM RESET wal_writer_delay")
            cursor.execute("SELECT pg_reload_conf()")
