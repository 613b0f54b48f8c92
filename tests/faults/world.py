"""The whole relay as it is deployed: real processes on servers that the tests own.

Each can be killed and started again. They must be started by the main thread: the kernel ends
a child with the *thread* that made it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
from django.db import connection

from config.trial import ports, postgres
from config.trial.directory import DataDirectory
from config.trial.processes import Program, signal_group
from config.trial.programs import relay_programs
from outbox.models import Event, EventState, Heartbeat
from tests.client import Party, RelayClient, make_device
from tests.concurrency.proxy import Proxy
from tests.conftest import WEB_THREADS, DatabaseClock
from tests.faults.servers import OwnPostgres, OwnRedis
from tests.outbox.kit import wait_until
from tests.wakes.servers import HttpServer

WEB, CLOCK, DISPATCHER = "web", "tick", "dispatch_outbox"
WAKES, MAINTENANCE = "work-wake", "work-maintenance"
BACKGROUND = (CLOCK, DISPATCHER, WAKES, MAINTENANCE)
EVERYTHING = (WEB, *BACKGROUND)
GATEWAY_SECRET = "the gateway's secret in the world of faults"
#: Past the lease of a batch, so that what a killed process had is due again.
A_LEASE = timedelta(seconds=61)
#: Past the time after which a sweep whose job was lost is handed over again.
A_LOST_JOB = timedelta(seconds=91)


class World:
    """Servers, processes, a gateway, and a clock. Made by the fixture `world`."""

    def __init__(self, root: Path, database: OwnPostgres, redis: OwnRedis) -> None:
        self.root, self.postgres, self.redis = root, database, redis
        (root / "logs").mkdir(exist_ok=True)
        self.to_postgres = Proxy(postgres.HOST, database.port)
        self.to_redis = Proxy(postgres.HOST, redis.port)
        self.gateway = HttpServer().__enter__()
        self.port = ports.free_port(postgres.HOST)
        self.clock = DatabaseClock()
        self.environment = self._environment()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._shifted = timedelta(0)

    @property
    def url(self) -> str:
        """Where the relay is."""
        return f"http://{postgres.HOST}:{self.port}"

    def client(self) -> RelayClient:
        """A client of it."""
        return RelayClient(self.url)

    # --- Processes ---------------------------------------------------------------------------
    def start(self, *names: str, **environment: str) -> None:
        """Start those that do not run, and wait until each is at work."""
        wanted = [name for name in names if not self.runs(name)]
        before = set(Heartbeat.objects.values_list("process_id", flat=True))
        for name in wanted:
            self.spawn(name, **environment)
        for name in names:
            if name == WEB or name in wanted:
                self._wait_for(name, before)

    def start_inside(self, prefix: Sequence[str], address: str, **environment: str) -> None:
        """The web process, inside whatever `prefix` leads into, listening at that address."""
        program = self.program(WEB, **environment)
        argv = [address if part == postgres.HOST else part for part in program.argv]
        self._running[WEB] = replace(program, argv=[*prefix, *argv]).spawn()
        url = f"http://{address}:{self.port}"
        wait_until(lambda: self.web_is_ready(url), 30, "the web process inside to be ready")

    def spawn(self, name: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start one, and wait for nothing."""
        program = self.program(name, **environment)
        self._running[name] = program.spawn()
        return self._running[name]

    def program(self, name: str, **environment: str) -> Program:
        """How one of them is started."""
        env = {**self.environment, **environment}
        table = relay_programs(DataDirectory(self.root), env, postgres.HOST, self.port)
        [program] = [each for each in table if each.name == name]
        return replace(program, env={**program.env, **environment})

    def kill(self, *names: str) -> None:
        """SIGKILL, and gone; granian with its workers."""
        for name in names:
            process = self._running.pop(name, None)
            if process is not None:
                signal_group(process, signal.SIGKILL)
                process.wait()

    def runs(self, name: str) -> bool:
        """Whether it lives."""
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """One that was started."""
        return self._running[name]

    def log(self, name: str) -> str:
        """What it wrote."""
        path = DataDirectory(self.root).log(name)
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def logs(self) -> list[Path]:
        """The logs of every process that ran, Valkey's included."""
        return sorted((self.root / "logs").glob("*.log"))

    def _wait_for(self, name: str, before: set[object]) -> None:
        said = name.replace("-", " ")

        def is_there() -> bool:
            assert self.runs(name), f"{name} ended:\n{self.log(name)[-2000:]}"
            if name == WEB:
                return self.web_is_ready()
            new = Heartbeat.objects.filter(name=said).exclude(process_id__in=before)
            return new.exists()

        wait_until(is_there, 30, f"{name} to be at work")

    def web_is_ready(self, url: str | None = None) -> bool:
        """Whether it answers, and could store something."""
        try:
            return httpx.get(f"{url or self.url}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    # --- Time, and what is left to do ----------------------------------------------------------
    def pass_time(self, delta: timedelta) -> None:
        """Time goes on by so much for everybody, at once."""
        self._shifted += delta
        self.clock.shift(self._shifted)

    def drain(self, seconds: float = 60) -> None:
        """Until no event is left but dead ones; leases and backoffs are not waited for."""
        connection.close()  # PostgreSQL may be another one by now
        deadline = time.monotonic() + seconds
        while True:
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                if self.is_drained():
                    return
                time.sleep(0.02)
            left = list(Event.objects.values_list("state", "topic", "last_error")[:5])
            assert time.monotonic() < deadline, f"the outbox does not empty: {left}"
            self.pass_time(A_LEASE)

    def is_drained(self) -> bool:
        """Whether no event is left but dead ones."""
        return not Event.objects.exclude(state=EventState.DEAD).exists()

    # --- Devices ------------------------------------------------------------------------------
    def woken_device(self) -> tuple[Party, str]:
        """A device that is woken through the gateway, and its handle there."""
        device = make_device()
        handle = f"handle-{device.id.hex}"
        with self.client() as client:
            body = {"transport": "gateway", "handle": handle}
            answer = client.call("PUT", "/v1/device/wake", device, json=body)
        assert answer.status_code == 200, answer.text
        return device, handle

    # --- Beginning and end of a test -------------------------------------------------------------
    def begin(self) -> None:
        """The clock is right (the tables were emptied), and nothing was received yet."""
        self._shifted = timedelta(0)
        self.gateway.received.clear()

    def heal(self) -> None:
        """Everything that a test broke is whole again; killed processes stay away."""
        for proxy in (self.to_postgres, self.to_redis):
            proxy.heal()
        self.to_postgres.lead_to(postgres.HOST, self.postgres.port)
        self.to_redis.lead_to(postgres.HOST, self.redis.port)
        self.redis.heal()
        if self.postgres.runs:
            self.postgres.resume()
        else:
            self.postgres.start()
        connection.close()
        self.redis.wipe()

    def end(self) -> None:
        """Nothing of it is left."""
        self.kill(*list(self._running))
        self.gateway.stop()
        self.to_postgres.close()
        self.to_redis.close()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DATABASE_URL": self.postgres.url(port=self.to_postgres.port),
            "REDIS_URL": self.redis.url.replace(f":{self.redis.port}/", f":{self.to_redis.port}/"),
            "RELAY_TRIAL": "1",
            "RELAY_WEB_THREADS": str(WEB_THREADS),
            "RELAY_BELIEVE_SECONDS": "0",
            "RELAY_TICK_SECONDS": "1",
            "WAKE_EGRESS_ALLOW": "127.0.0.1,localhost",
            "WAKE_GATEWAY_URL": self.gateway.url("/wake"),
            "WAKE_GATEWAY_SECRET": GATEWAY_SECRET,
            "WAKE_DEBOUNCE_MS": "200",
            "DJANGO_SETTINGS_MODULE": "config.settings",
        }


@contextmanager
def django_leads_to(parameters: Mapping[str, str]) -> Iterator[None]:
    """Django's connections of this process, in every thread, lead to another database."""
    settings = connection.settings_dict
    former = {name: settings[name] for name in parameters}
    connection.close()
    settings.update(parameters)
    try:
        yield
    finally:
        connection.close()
        settings.update(former)
