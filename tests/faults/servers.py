"""A PostgreSQL and a Valkey of the tests' own, to be killed, stopped, filled and wiped.

Both keep their port over a restart; PostgreSQL keeps its data too, Valkey loses it.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg

from config.trial import ports, postgres
from config.trial.directory import DataDirectory
from config.trial.signals import Signals
from tests.conftest import PROJECT
from tests.outbox.kit import OwnValkey, wait_until

#: Begins like the databases of all tests: what empties the tables insists on it.
DATABASE = "test_faults"
#: Seconds until PostgreSQL is there again; it may have a crash to recover from.
READY = 60


def send_to_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """The signal to each that is still there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class OwnPostgres:
    """A cluster of its own with a migrated database."""

    def __init__(self, **settings: str) -> None:
        # Not below pytest's own directories: those are kept, and a cluster is large.
        self.root = Path(tempfile.mkdtemp(prefix="relay-faults-"))
        (self.root / "logs").mkdir()
        self._password = secrets.token_urlsafe(12)
        self._cluster = postgres.cluster(DataDirectory(self.root), Signals(), lambda text: None)
        self._cluster.create(self._password)
        self.port = ports.free_port(postgres.HOST)
        self._settings = settings
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What PostgreSQL wrote."""
        return self._cluster.directory.log("postgres")

    def listen_as_before(self) -> None:
        """From the next start on."""
        self._settings.pop("listen_addresses", None)

    def url(self, *, host: str = postgres.HOST, port: int | None = None) -> str:
        """The address of the database, or of another way to it."""
        where = f"{host}:{port or self.port}"
        options = "sslmode=disable&gssencmode=disable"
        return f"postgresql://{postgres.ROLE}:{self._password}@{where}/{DATABASE}?{options}"

    def parameters(self) -> dict[str, str]:
        """Where Django's connections of this process are to lead."""
        return {
            "NAME": DATABASE,
            "USER": postgres.ROLE,
            "PASSWORD": self._password,
            "HOST": postgres.HOST,
            "PORT": str(self.port),
        }

    def prepare(self) -> None:
        """Make the database and migrate it; the cluster is left running."""
        self.start()
        system = self.url().replace(f"/{DATABASE}?", "/postgres?")
        with psycopg.connect(system, autocommit=True) as session:
            session.execute(f"CREATE DATABASE {DATABASE}")
        subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), "migrate", "-v", "0"],
            env={**os.environ, "DATABASE_URL": self.url(), "RELAY_ROLE": "command"},
            check=True,
        )

    def listen_on(self, address: str, *, network: str) -> None:
        """From the next start on take connections there as well, and from that network."""
        self._settings["listen_addresses"] = f"{postgres.HOST},{address}"
        with (self._cluster.directory.postgres / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {network} scram-sha-256\n")

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        program = self._cluster.program(self.port)
        argv = [*program.argv, *(f"--{name}={value}" for name, value in self._settings.items())]
        process = self.process = replace(program, argv=argv).spawn()

        def is_ready() -> bool:
            assert process.poll() is None, f"PostgreSQL ended:\n{self.log.read_text()[-2000:]}"
            return self._cluster.is_ready(process.pid)

        wait_until(is_ready, READY, "PostgreSQL to be ready")

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGINT)

    def stop_immediately(self) -> None:
        """As `pg_ctl stop -m immediate`: nothing is written down, the next start recovers."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL to all of it, as when the machine's memory ran out."""
        if self.runs:
            send_to_all(self._everyone(), signal.SIGKILL)
            self._wait()

    def pause(self) -> None:
        """SIGSTOP to all of it: it holds its connections and does nothing."""
        send_to_all(self._everyone(), signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        send_to_all(self._everyone(), signal.SIGCONT)

    def remove(self) -> None:
        """Gone, with its data."""
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self.runs:
            assert self.process is not None
            self.process.send_signal(number)
            self._wait()

    def _wait(self) -> None:
        assert self.process is not None
        self.process.wait(30)

    def _everyone(self) -> list[psutil.Process]:
        """The postmaster first: it must not start others meanwhile."""
        assert self.process is not None
        postmaster = psutil.Process(self.process.pid)
        return [postmaster, *postmaster.children(recursive=True)]


class OwnRedis(OwnValkey):
    """A Valkey with the faults of this kit besides."""

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and answers nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def fill(self) -> None:
        """No write is taken any more."""
        self.client.set("filler", b"x" * 1_000_000)
        self.client.config_set("maxmemory", 1_000_000)

    def make_room(self) -> None:
        """Writes are taken again."""
        self.client.config_set("maxmemory", 0)
        self.client.delete("filler")

    def wipe(self) -> None:
        """FLUSHALL."""
        self.client.flushall()

    def heal(self) -> None:
        """Running, answering, with room."""
        if not self.runs:
            self.start()
        self.resume()
        self.make_room()
