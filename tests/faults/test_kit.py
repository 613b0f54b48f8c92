"""The kit itself: what its servers and its proxy do, and that its oracle finds what it should."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
import redis
from django.db import connection

from tests.concurrency.proxy import Proxy, proxy_to
from tests.faults.load import DurableJournal, Load
from tests.faults.servers import DATABASE
from tests.faults.verdict import verdict, wake_faults
from tests.faults.world import WEB, World
from tests.rules.planting import run
from tests.wakes.servers import Received


# --- The servers -------------------------------------------------------------------------------
def test_django_leads_to_the_worlds_own_database(world: World) -> None:
    assert run("SELECT current_database()") == [(DATABASE,)]
    assert connection.settings_dict["PORT"] == str(world.postgres.port)


@pytest.mark.parametrize("how", ["stop", "stop_immediately", "kill"])
def test_postgresql_keeps_what_was_committed_and_its_address(world: World, how: str) -> None:
    run("CREATE TABLE tests_kept (word text)")
    try:
        run("INSERT INTO tests_kept VALUES ('kept')")
        getattr(world.postgres, how)()
        assert not world.postgres.runs
        world.postgres.start()
        connection.close()
        assert run("SELECT word FROM tests_kept") == [("kept",)]
    finally:
        run("DROP TABLE tests_kept")


def test_a_paused_postgresql_holds_its_connections_and_answers_nothing(world: World) -> None:
    with psycopg.connect(world.postgres.url(), autocommit=True) as session:
        world.postgres.pause()
        done = threading.Event()
        asked = threading.Thread(target=lambda: (session.execute("SELECT 1"), done.set()))
        asked.start()
        assert not done.wait(0.5)
        world.postgres.resume()
        assert done.wait(5)
        asked.join()


def test_valkey_is_filled_wiped_paused_and_comes_back_empty(world: World) -> None:
    client = world.redis.client
    client.set("kept", 1)
    world.redis.fill()
    with pytest.raises(redis.RedisError):
        client.set("more", 1)
    assert client.get("kept") == b"1"
    world.redis.make_room()
    client.set("more", 1)
    world.redis.pause()
    with pytest.raises(redis.TimeoutError):
        redis.Redis.from_url(world.redis.url, socket_timeout=0.2).get("kept")
    world.redis.resume()
    world.redis.wipe()
    assert client.dbsize() == 0
    client.set("kept", 1)
    world.redis.kill()
    world.redis.start()
    assert client.dbsize() == 0


# --- The proxy ---------------------------------------------------------------------------------
@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says everything once more."""

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            while data := client.recv(100):
                client.sendall(data)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, daemon=True).start()
    yield int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with proxy_to("127.0.0.1", echo) as made:
        yield made


def _line(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def test_the_proxy_delays_both_ways_and_stalls_without_a_word(proxy: Proxy) -> None:
    with _line(proxy) as line:
        line.sendall(b"one")
        assert line.recv(100) == b"one"
        proxy.delay = 0.2
        began = time.monotonic()
        line.sendall(b"two")
        assert line.recv(100) == b"two"
        assert time.monotonic() - began >= 0.4
        proxy.delay = 0.0
        proxy.stall()
        line.sendall(b"three")
        line.settimeout(0.3)
        with pytest.raises(TimeoutError):
            line.recv(100)
        proxy.flow()
        line.settimeout(5)
        assert line.recv(100) == b"three"


def test_the_proxy_resets_and_refuses(proxy: Proxy) -> None:
    with _line(proxy) as line:
        line.sendall(b"one")
        assert line.recv(100) == b"one"
        assert proxy.reset_all() == 1
        with pytest.raises(ConnectionResetError):
            line.recv(100)
    proxy.refuse()
    with _line(proxy) as line, pytest.raises(ConnectionResetError):
        line.recv(100)
    proxy.heal()
    with _line(proxy) as line:
        line.sendall(b"two")
        assert line.recv(100) == b"two"


def test_the_proxy_keeps_an_answer_that_the_upstream_gave(proxy: Proxy) -> None:
    seen: list[bytes] = []
    proxy.on_answer = lambda data: bool(seen.append(data)) or True
    with _line(proxy) as line:
        line.sendall(b"one")
        assert line.recv(100) == b""
    assert (seen, proxy.cuts) == ([b"one"], 1)


# --- The oracle --------------------------------------------------------------------------------
def test_a_journal_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = DurableJournal(tmp_path / "journal")
    device_id, first, second = uuid4(), uuid4(), uuid4()
    written.add(device_id, first, "key-1", '{"a": "µ"}')
    written.add(device_id, second, "key-2", None)
    assert DurableJournal.read(written.path).submitted == written.submitted
    assert [entry.message_id for entry in written.accepted] == [first]


def test_a_wake_counts_when_it_came_after_the_mail(load: Load) -> None:
    sleeper = load.mailboxes[0]
    assert sleeper.handle is not None
    body = f'{{"handle":"{sleeper.handle}"}}'.encode()
    sleeper.mail_since = 100.0
    wakes = [Received("POST", "/wake", {}, body, at) for at in (99.0, 101.0)]
    assert wake_faults([sleeper], wakes) == []
    assert wake_faults([sleeper], wakes[:1]) == ["not woken: 1"]
    assert wake_faults([sleeper], []) == ["not woken: 1"]
    sleeper.mail_since = 0.0
    assert wake_faults([sleeper], []) == []


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("SELECT 1", []),
        ("DELETE FROM outbox_event", ["not woken"]),
        ("UPDATE outbox_event SET state = 'dead'", ["dead letters", "not woken"]),
        (
            "UPDATE idempotency_record SET body = replace(body, '2', '3') WHERE status = 201",
            ["keys with another answer"],
        ),
        (
            "WITH gone AS (DELETE FROM relay_envelope RETURNING 1), bodies AS "
            "(DELETE FROM relay_body) UPDATE quotas_queueusage SET pending_count = 0, "
            "pending_bytes = 0, next_seq = 1",
            ["accepted but not stored", "missing", "not woken"],
        ),
    ],
    ids=["nothing", "lost events", "dead events", "another answer", "lost envelopes"],
)
def test_the_verdict_finds_what_was_planted(
    world: World, load: Load, planted: str, found: list[str]
) -> None:
    """Nobody dispatches here; events are planted away, or handed over by hand."""
    sleeper = load.mailboxes[0]
    load.mailboxes = [sleeper]
    for _ in range(5):
        assert load.submit().status == 201
    run(planted)
    if planted.startswith(("SELECT", "UPDATE idempotency")):
        run("DELETE FROM outbox_event")
        body = str(sleeper.handle).encode()
        world.gateway.received.append(Received("POST", "/wake", {}, body, time.monotonic()))
    elif planted.startswith("WITH"):
        run("DELETE FROM outbox_event")
    assert [text.partition(":")[0] for text in verdict(load)] == found


@pytest.fixture(autouse=True)
def _web(request: pytest.FixtureRequest) -> None:
    """Those that load it need the web process, and nothing else."""
    if "load" in request.fixturenames:
        request.getfixturevalue("world").start(WEB)
