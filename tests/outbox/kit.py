"""Processes that a test may kill, and what they leave behind."""

import json
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import redis
from django.core.management import call_command
from django.db import connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.kernel import clock, failpoints
from config.kernel.shards import shard_of_device
from config.trial import ports, valkey
from config.trial.directory import DataDirectory
from outbox import publishing
from outbox.models import Event
from outbox.services.dispatching import Dispatcher
from outbox.services.working import Worker
from outbox.topics import DONE, EventRef, Settlement

#: The topic that the tests register.
PROBE = "probe"


class OwnValkey:
    """A Valkey of the test's own."""

    def __init__(self, root: Path) -> None:
        for room in ("logs", "valkey"):
            (root / room).mkdir(parents=True)
        password = secrets.token_urlsafe(12)
        self.port = ports.free_port(valkey.HOST)
        self.url = f"redis://:{password}@{valkey.HOST}:{self.port}/0"
        self._program = valkey.program(
            DataDirectory(root), server=valkey.binary(), port=self.port, password=password
        )
        self.client = redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=5)

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        self.process = self._program.spawn()
        wait_until(self._answers, 10, "Valkey to answer")

    def kill(self) -> None:
        """End it at once; what it held is lost."""
        self.process.kill()
        self.process.wait()

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except (redis.RedisError, OSError):
            return False

    def dump(self) -> dict[bytes, Any]:
        """Every key and what it holds."""
        readers: dict[bytes, Callable[[bytes], Any]] = {
            b"string": self.client.get,
            b"hash": self.client.hgetall,
            b"set": self.client.smembers,
            b"list": lambda key: self.client.lrange(key, 0, -1),
            b"zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
            b"stream": self.client.xrange,
            b"none": lambda key: None,  # it ended since it was listed
        }
        return {key: readers[self.client.type(key)](key) for key in self.client.scan_iter()}


class Effects:
    """What handlers did, in whichever process: a file that each of them appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, events: Iterable[EventRef]) -> None:
        """One line, written at once: the ids of one call."""
        line = json.dumps([str(event.event_id) for event in events]) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line.encode())
        os.close(descriptor)

    @property
    def calls(self) -> list[list[UUID]]:
        """The calls so far."""
        if not self.path.exists():
            return []
        return [list(map(UUID, json.loads(line))) for line in self.path.read_text().splitlines()]

    @property
    def events(self) -> list[UUID]:
        """The events of all calls, each as often as it was handled."""
        return [event_id for call in self.calls for event_id in call]

    def all_done(self, events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        """A handler: everything is done."""
        self.add(events)
        return {event.event_id: DONE for event in events}


class Forked:
    """A process made from this one, as a copy: ready at once, and a test may kill it."""

    def __init__(self, run: Callable[[], object], log: Path, *, points: str = "") -> None:
        connection.close()  # the copy must not share the socket
        publishing.forget_connections()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _be_a_process(run, log, points)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self, seconds: float = 20) -> int:
        """Its exit code; the negative signal when it was killed."""
        wait_until(self._is_gone, seconds, f"process {self.pid} to end")
        assert self.returncode is not None
        return self.returncode

    def _is_gone(self) -> bool:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode is not None


class Processes:
    """The forked processes of a test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[Forked] = []

    def run(self, run: Callable[[], object], points: str = "") -> Forked:
        """Anything."""
        log = self._directory / f"process-{len(self._started)}.log"
        self._started.append(Forked(run, log, points=points))
        return self._started[-1]

    def dispatcher(self, points: str = "") -> Forked:
        """A dispatcher that runs until it is killed."""
        return self.run(lambda: Dispatcher().run(), points)

    def worker(self, points: str = "") -> Forked:
        """A worker on the queue of the tests' topic that runs until it is killed."""
        return self.run(lambda: Worker("wake").run(), points)

    def command(self, *arguments: str) -> Forked:
        """A command of `manage.py`, with its signal handlers."""
        return self.run(lambda: call_command(*arguments))

    def kill_all(self) -> None:
        for process in self._started:
            process.kill()


def _be_a_process(run: Callable[[], object], log: Path, points: str) -> None:
    """The rest of a forked process's life."""
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        failpoints.arm(points, in_trial=True)
        run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_until(probe: Callable[[], Any], seconds: float, what: str) -> float:
    """Wait for it; how long it took."""
    started = time.monotonic()
    while not probe():
        assert time.monotonic() - started < seconds, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return time.monotonic() - started


def add_events(count: int, *, topic: str = PROBE, **columns: Any) -> list[UUID]:
    """Events that have been due for a second, over the shards as they come."""
    now = clock.read()
    rows = []
    for number in range(count):
        device_id = columns.get("device_id", uuid4())
        values = {
            "kind": "",
            "next_at": now - timedelta(seconds=1) + timedelta(microseconds=number),
            "created_at": now - timedelta(seconds=1) + timedelta(microseconds=number),
            **columns,
            "device_id": device_id,
        }
        shard = values.pop("shard", shard_of_device(device_id))
        rows.append(Event(shard=shard, event_id=uuid4(), topic=topic, **values))
    Event.objects.bulk_create(rows)
    return [row.event_id for row in rows]


def event(event_id: UUID) -> Event:
    """The event as it is now."""
    return Event.objects.get(event_id=event_id)


def dispatch() -> Dispatcher:
    """One round of a fresh dispatcher."""
    dispatcher = Dispatcher()
    dispatcher.dispatch_once()
    return dispatcher


def work(queue: str = "wake") -> Worker:
    """A worker until its queue is empty, in this process."""
    worker = Worker(queue, burst=True)
    worker.run()
    return worker


def round_trip() -> None:
    """Everything that is due, once: dispatched and handled."""
    dispatch()
    work()
