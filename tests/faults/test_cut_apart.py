"""Web and PostgreSQL are cut apart, and nobody is told (FAULTS 12).

Across a veth pair where this machine allows network namespaces. Where it does not (and in the
long run besides) through a proxy that stops passing anything on, with neither FIN nor RST.
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest
from django.db import connection

from tests.client import Party, RelayClient, make_device, new_key
from tests.concurrency.crowd import Background, together
from tests.concurrency.loads import code_of
from tests.concurrency.oracle import assert_sound
from tests.concurrency.proxy import proxy_to
from tests.conftest import WEB_THREADS
from tests.faults.namespaces import DATA_NETWORK, TALK_NETWORK, Namespace, why_not
from tests.faults.test_postgres import recovers_on_every_thread
from tests.faults.world import WEB, World
from tests.outbox.kit import wait_until
from tests.rules.planting import run

#: A request ends within ten seconds; the rest is this machine's.
LIMIT = 11.5
#: PostgreSQL has noticed by then that nobody is there (config/settings.py).
NOTICED = 25.0

_REASON = why_not()
if _REASON is not None:
    sys.stderr.write(f"\nFAULTS 12 is shown by the proxy alone: {_REASON}\n")
WAYS = ["proxy"] if _REASON else ["veth"]
if "FAULT_SECONDS" in os.environ:
    WAYS = sorted({"proxy", *WAYS})

pytestmark = pytest.mark.slow


@dataclass
class Line:
    """The way between a web process and PostgreSQL."""

    url: str
    cut: Callable[[], None]
    join: Callable[[], None]
    #: Whether PostgreSQL's own end of it is cut too.
    to_the_end: bool


@contextmanager
def _by_proxy(world: World) -> Iterator[Line]:
    world.start(WEB)
    yield Line(world.url, world.to_postgres.stall, world.to_postgres.flow, to_the_end=False)


@contextmanager
def _by_veth(world: World) -> Iterator[Line]:
    database, inside = f"{DATA_NETWORK}.1", f"{TALK_NETWORK}.2"
    with (
        Namespace() as namespace,
        proxy_to("127.0.0.1", world.redis.port, listen=f"{TALK_NETWORK}.1") as redis,
    ):
        world.kill(WEB)
        world.postgres.stop()
        world.postgres.listen_on(database, network=f"{DATA_NETWORK}.0/24")
        world.postgres.start()
        connection.close()
        redis_url = world.redis.url.replace("127.0.0.1", f"{TALK_NETWORK}.1")
        world.start_inside(
            namespace.prefix,
            inside,
            DATABASE_URL=world.postgres.url(host=database),
            REDIS_URL=redis_url.replace(f":{world.redis.port}/", f":{redis.port}/"),
            ALLOWED_HOSTS=inside,
        )
        try:
            yield Line(f"http://{inside}:{world.port}", namespace.cut, namespace.join, True)
        finally:
            world.kill(WEB)
            world.postgres.stop()
            world.postgres.listen_as_before()
            world.postgres.start()
            connection.close()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("way", WAYS)
def test_cut_apart_requests_end_in_time_locks_are_freed_and_half_open_connections_end(
    world: World, way: str
) -> None:
    sender, recipient = make_device(), make_device()
    # One each: of those who wait for one queue only a quarter may (DESIGN rule 4.8).
    others = itertools.cycle([make_device() for _ in range(WEB_THREADS)])
    with (_by_veth if way == "veth" else _by_proxy)(world) as line, RelayClient(line.url) as relay:

        def submit(to: Party | None = None) -> tuple[httpx.Response, float]:
            began = time.monotonic()
            answer = relay.submit(sender, to or next(others), key=new_key())
            return answer, time.monotonic() - began

        recovers_on_every_thread(submit)  # every thread is connected
        before = _backends()
        with _slow_bodies(recipient.id):
            under_way = Background(
                lambda: submit(recipient)
            )  # it is cut off in its transaction, with its locks
            wait_until(lambda: _backends("active"), 5, "the statement that takes a while")
            line.cut()
            began = time.monotonic()
            rest = Background(lambda: together([submit] * (WEB_THREADS - 2)))
            for answer, seconds in [under_way.result(), *rest.result()]:
                assert (answer.status_code, code_of(answer)) == (503, "STORAGE_UNAVAILABLE")
                assert seconds < LIMIT
        # The queue that was locked is free again without anybody's help.
        wait_until(lambda: not _backends("idle in transaction"), NOTICED, "the locks to be freed")
        assert not _is_locked(recipient.id)
        if line.to_the_end:
            left = NOTICED - (time.monotonic() - began)
            wait_until(lambda: not before & _backends(), left, "half-open connections to end")
        line.join()
        recovers_on_every_thread(submit)
        assert submit(recipient)[0].status_code == 201
    assert_sound()


def _backends(state: str = "") -> set[int]:
    """The web process's sessions, as PostgreSQL sees them."""
    rows = run(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'relay-web' AND state LIKE %s",
        [f"{state}%"],
    )
    return {pid for (pid,) in rows}


def _is_locked(device_id: object) -> bool:
    return not run(
        "SELECT 1 FROM quotas_queueusage WHERE device_id = %s FOR UPDATE SKIP LOCKED",
        [device_id],
    )


@contextmanager
def _slow_bodies(device_id: object) -> Iterator[None]:
    """Storing a ciphertext for this device takes a second and a half, its row locked."""
    run(
        "CREATE FUNCTION tests_slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(1.5); RETURN NEW; END $$"
    )
    run(
        "CREATE TRIGGER tests_slow BEFORE INSERT ON relay_body FOR EACH ROW "
        f"WHEN (NEW.device_id = '{device_id}') EXECUTE FUNCTION tests_slow()"
    )
    try:
        yield
    finally:
        run("SET lock_timeout = '15s'")
        run("DROP TRIGGER tests_slow ON relay_body")
        run("DROP FUNCTION tests_slow()")
        run("RESET lock_timeout")
