"""How soon a wake is handed over after its envelope was committed.

    .venv/bin/python -m tests.bench.wakes --rate 300 --seconds 60
    .venv/bin/python -m tests.bench.wakes --redis wiped      (FLUSHALL in the middle)
    .venv/bin/python -m tests.bench.wakes --redis away       (from the first submit to the last)

Starts PostgreSQL, Valkey and the relay's five processes of its own, and a gateway. Submits come
at a fixed rate, whatever the relay does, each to another device. The time of a wake runs from
when the submit was sent, which is before its commit, to when the gateway had it: an upper bound.
"""

# ruff: noqa: E402 - servers and settings come before what needs them

import argparse
import base64
import json
import os
import selectors
import socket
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any
from uuid import uuid4

import tests.servers  # noqa: F401 - brings servers and settings before Django looks

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django

django.setup()

from config.kernel.database import durable_transaction
from config.kernel.shards import shard_of_device
from outbox.models import Batch, Event
from quotas.models import QueueUsage
from quotas.services import limits_write_version
from relay.models import Body, Device, Envelope
from relay.wakes.registrations import Gateway, seal
from tests.bench.submit_rate import answered, request
from tests.client import make_device
from tests.factories import now
from tests.faults.servers import OwnPostgres, OwnRedis
from tests.faults.world import EVERYTHING, World, django_leads_to

CONNECTIONS = 32
SENDERS = 50


@dataclass
class Run:
    """What one run saw."""

    submits: dict[str, float] = field(default_factory=dict)  # by handle: when it was sent
    seconds: list[float] = field(default_factory=list)  # of each submit
    statuses: Counter[int] = field(default_factory=Counter)


@dataclass
class _Line:
    socket: socket.socket
    sent_at: float = 0.0
    received: bytes = b""


def make_recipients(count: int) -> list[tuple[str, str]]:
    """Devices that are woken through the gateway: (device id, handle)."""
    made = []
    for _ in range(count):
        device = Device(device_id=uuid4(), token_sha256=os.urandom(32), created_at=now())
        handle = f"handle-{device.device_id.hex}"
        device.wake_transport = "gateway"
        device.wake_sealed = seal(device_id=device.device_id, registration=Gateway(handle))
        made.append((device, handle))
    Device.objects.bulk_create([device for device, _ in made], batch_size=2_000)
    QueueUsage.objects.bulk_create(
        [
            QueueUsage(shard=shard_of_device(device.device_id), device_id=device.device_id)
            for device, _ in made
        ],
        batch_size=2_000,
    )
    return [(str(device.device_id), handle) for device, handle in made]


def drive(world: World, recipients: list[tuple[str, str]], *, rate: float) -> Run:
    """One submit to each, at that rate."""
    tokens = [make_device().token for _ in range(SENDERS)]
    ciphertext = base64.b64encode(os.urandom(1024)).decode()
    run, waiting = Run(), selectors.DefaultSelector()
    free: deque[_Line] = deque()  # in turn, as the relay closes what was idle for long
    for _ in range(CONNECTIONS):
        line = _Line(socket.create_connection(("127.0.0.1", world.port)))
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(line.socket, selectors.EVENT_READ, line)
        free.append(line)
    began, sent, done = time.monotonic(), 0, 0
    while done < len(recipients):
        due = min(len(recipients), int((time.monotonic() - began) * rate))
        while sent < due and free:
            line = free.popleft()
            device, handle = recipients[sent]
            line.received = b""
            line.sent_at = run.submits[handle] = time.monotonic()
            line.socket.sendall(request("127.0.0.1", tokens[sent % SENDERS], device, ciphertext))
            sent += 1
        for key, _ in waiting.select(0.002):
            line = key.data
            part = line.socket.recv(65536)
            assert part, "the relay closed a connection"
            line.received += part
            status = answered(line.received)
            if status is not None:
                run.seconds.append(time.monotonic() - line.sent_at)
                run.statuses[status] += 1
                free.append(line)
                done += 1
    return run


@contextmanager
def redis_is(how: str, world: World, seconds: float) -> Iterator[None]:
    """What becomes of Redis meanwhile."""
    if how == "away":
        world.redis.kill()
    timer = threading.Timer(seconds / 2, world.redis.wipe)
    if how == "wiped":
        timer.start()
    yield
    timer.cancel()
    if how == "away":
        world.redis.start()


def wait_until_drained(world: World) -> float:
    """Seconds until no event is left."""
    began = time.monotonic()
    while Event.objects.exists() and time.monotonic() - began < 300:
        time.sleep(0.05)
    return time.monotonic() - began


def report(world: World, run: Run, drained_after: float) -> dict[str, Any]:
    """The figures."""
    arrived: dict[str, float] = {}
    for received in world.gateway.received:
        arrived.setdefault(json.loads(received.body)["handle"], received.at)
    woken = [arrived[handle] - sent for handle, sent in run.submits.items() if handle in arrived]
    return {
        "submits": dict(run.statuses),
        "submit_ms": _quantiles(run.seconds),
        "wake_ms": _quantiles(woken),
        "devices_not_woken": len(run.submits) - len(woken),
        "wakes": len(world.gateway.received),
        "drained_after_s": round(drained_after, 2),
        "events_left": Event.objects.count(),
        "batches_open": Batch.objects.filter(done_at__isnull=True).count(),
        "envelopes": Envelope.objects.count(),
        "bodies": Body.objects.count(),
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    cuts = quantiles(values, n=1000)
    return {"p50": round(cuts[499] * 1000, 1), "p99": round(cuts[989] * 1000, 1)}


def main() -> None:
    """One run, one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--redis", choices=["well", "wiped", "away"], default="well")
    options = parser.parse_args()
    database = OwnPostgres()
    try:
        database.prepare()
        with tempfile.TemporaryDirectory() as root, django_leads_to(database.parameters()):
            redis = OwnRedis(Path(root))
            redis.start()
            world = World(Path(root), database, redis)
            world.environment |= {
                "RELAY_WEB_THREADS": "4",
                "RELAY_BELIEVE_SECONDS": "3",
                "RELAY_TICK_SECONDS": "5",
                "REDIS_URL": redis.url,
                "DATABASE_URL": database.url(),
            }
            try:
                with durable_transaction():
                    limits_write_version(actor_rate=100_000, address_rate=None)
                recipients = make_recipients(int(options.rate * options.seconds))
                world.start(*EVERYTHING)
                with redis_is(options.redis, world, options.seconds):
                    run = drive(world, recipients, rate=options.rate)
                print(json.dumps(report(world, run, wait_until_drained(world))))  # noqa: T201
            finally:
                world.end()
                redis.kill()
    finally:
        database.stop()
        database.remove()


if __name__ == "__main__":
    main()
