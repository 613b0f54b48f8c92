"""Mail with wakes through the real processes, with markers in all that must not be seen.

Looked for in what Redis holds (jobs unpacked, and its dump), in every process's log with
LOG_LEVEL=DEBUG, in PostgreSQL's and Valkey's, in what operators see, and in what goes out
(FAULTS 25, OUTBOX.md "RQ: traps"). What the web process alone writes is in tests/rules.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from adminui.models import AuditEntry
from outbox.models import Event
from tests.admin.commands import manage
from tests.client import Party, make_device, new_key
from tests.faults.world import CLOCK, DISPATCHER, EVERYTHING, MAINTENANCE, WAKES, WEB, World
from tests.outbox.kit import wait_until
from tests.rules.markers import Markers
from tests.wakes.authority import Authority
from tests.wakes.servers import Answer, HttpServer, Received
from tests.wakes.subscriber import Subscriber


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def push_service(authority: Authority) -> Iterator[HttpServer]:
    """A push service at https://localhost."""
    with HttpServer(tls=authority.server_context("localhost", "127.0.0.1")) as server:
        yield server


class Mail:
    """Mail with a marker in each of its parts, for a device that is woken somehow."""

    def __init__(self, world: World, markers: Markers, name: str) -> None:
        self.device: Party = make_device()
        markers.party(f"{name}'s device", self.device)
        self.message_id = uuid4()
        markers.texts[f"{name}'s message id"] = str(self.message_id)
        markers.texts[f"{name}'s message id in hex"] = self.message_id.hex
        self._ciphertext = markers.text(f"{name}'s ciphertext").encode()
        self._other = markers.text(f"{name}'s other ciphertext").encode()
        self._key = markers.text(f"{name}'s key")
        self._world = world

    def register(self, **registration: str) -> None:
        with self._world.client() as relay:
            answer = relay.call("PUT", "/v1/device/wake", self.device, json=registration)
            assert answer.status_code == 200, answer.text

    def send(self, sender: Party) -> None:
        """Once, and once more with another ciphertext: that is for the audit log."""
        with self._world.client() as relay:
            sent = {"message_id": self.message_id}
            first = relay.submit(sender, self.device, self._ciphertext, key=self._key, **sent)
            assert first.status_code == 201
            other = relay.submit(sender, self.device, self._other, key=new_key(), **sent)
            assert other.status_code == 409


def _redis_holds(world: World) -> str:
    """Everything in Redis as text: each key and value, jobs unpacked, and the dump on disk."""
    client = world.redis.client
    parts = [repr(world.redis.dump())]
    for key in client.scan_iter("rq:job:*"):
        data = client.hget(key, "data") if client.type(key) == b"hash" else None
        if data is not None:  # else it was done meanwhile
            parts.append(zlib.decompress(data).decode("latin-1"))
    client.config_set("rdbcompression", "no")
    client.save()
    directory = client.config_get("dir")["dir"]
    parts.append((Path(directory) / "dump.rdb").read_bytes().decode("latin-1"))
    return "\n".join(parts)


def test_no_marker_is_in_redis_in_a_log_or_in_what_goes_out(
    world: World, authority: Authority, push_service: HttpServer
) -> None:
    markers, sender = Markers(), make_device()
    markers.party("sender", sender)
    world.kill(*EVERYTHING)
    before = world.postgres.log.stat().st_size
    environment = {
        "LOG_LEVEL": "DEBUG",
        "WAKE_CA_FILE": str(authority.file),
        "WAKE_DEBOUNCE_MS": "2000",
    }
    world.start(WEB, CLOCK, DISPATCHER, **environment)  # nobody takes the jobs yet

    by_gateway, by_push = Mail(world, markers, "gateway"), Mail(world, markers, "push")
    handle, path = markers.text("handle"), markers.text("endpoint")
    keys = Subscriber()
    markers.bytes("p256dh", keys.p256dh)
    markers.bytes("auth", keys.auth)
    by_gateway.register(transport="gateway", handle=handle)
    by_push.register(**keys.body(push_service.url(f"/{path}", host="localhost")))
    trouble = markers.text("a server's own words")
    tried: set[str] = set()

    def refuse_once(received: Received) -> Answer:
        """Errors are logged as well; what a server says in them is not."""
        if received.path in tried:
            return Answer()
        tried.add(received.path)
        return Answer(status=500, headers={"X-Trouble": trouble}, body=trouble.encode())

    push_service.answer = world.gateway.answer = refuse_once
    by_gateway.send(sender)
    by_push.send(sender)
    client = world.redis.client
    for queue in ("wake", "maintenance"):
        name = f"rq:queue:{queue}"
        wait_until(lambda name=name: client.llen(name), 10, f"jobs on {queue}")
    wait_until(lambda: not Event.objects.filter(state="pending").exists(), 10, "the claims")
    waiting = _redis_holds(world)
    assert "outbox.jobs.handle_batch" in waiting
    assert markers.found_in(waiting) == []

    world.start(WAKES, MAINTENANCE, **environment)
    wait_until(lambda: world.gateway.received and push_service.received, 10, "the first calls")
    meanwhile = _redis_holds(world)
    assert "relay:wake:recent" in meanwhile
    assert markers.found_in(meanwhile) == []
    world.drain()
    assert len(world.gateway.received) >= 2
    assert len(push_service.received) >= 2
    worked = _redis_holds(world)
    assert markers.found_in(worked) == []
    metrics = httpx.get(f"{world.url}/metrics").text
    assert markers.found_in(metrics) == []
    status = manage("outbox", "status")
    assert markers.found_in(status.stdout + status.stderr) == []
    entries = list(AuditEntry.objects.values())
    assert len(entries) == 2  # a conflict each
    assert markers.found_in(repr(entries)) == []

    world.kill(*EVERYTHING)
    logs = {path.name: path.read_text("utf-8", "replace") for path in world.logs()}
    with world.postgres.log.open("rb") as stream:
        stream.seek(before)
        logs["postgres.log"] = stream.read().decode("utf-8", "replace")
    assert {"web.log", "tick.log", "dispatch_outbox.log", "work-wake.log"} <= set(logs)
    for name, text in logs.items():
        assert markers.found_in(text) == [], name
    assert "wake.handled" in logs["work-wake.log"]
    assert "outbox.published" in logs["dispatch_outbox.log"]
    _nothing_goes_out_but_what_must(world, push_service, markers)


def _nothing_goes_out_but_what_must(
    world: World, push_service: HttpServer, markers: Markers
) -> None:
    """The gateway learns the handle; a push service its own path."""
    for received in world.gateway.received:
        text = f"{received.path} {received.headers} {received.body.decode('latin-1')}"
        assert {name.split(" in ")[0] for name in markers.found_in(text)} == {"handle"}
    for received in push_service.received:
        text = f"{received.headers} {received.body.decode('latin-1')}"
        assert markers.found_in(text) == []
