"""The data directory: its rooms, and the lock that keeps a second trial out."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from config.trial.envfile import leave_to_owner
from config.trial.errors import TrialError

_ROTATE_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True)
class DataDirectory:
    """Where a trial keeps its data, its settings and its logs."""

    root: Path
    #: The trial before this one did not end by itself, so something of it may still be ending.
    after_crash: bool = False

    @property
    def env_file(self) -> Path:
        return self.root / "env"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def fresh_room(self, name: str) -> Path:
        """An empty private directory for what does not outlive this trial."""
        room = self.root / name
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir(mode=0o700)
        return room


@contextmanager
def claimed(root: Path) -> Iterator[DataDirectory]:
    """Make the directory where it is missing and hold it alone.

    The lock is the kernel's, so it cannot outlive a killed trial. The pid inside stays after
    a kill, which is how the next start knows that the last one did not end by itself.
    """
    _make_rooms(root)
    descriptor = _open_private(root / "lock", os.O_RDWR)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode().strip() or "unknown"
            raise TrialError(
                f"{root} is already in use by another `manage.py up` (pid {holder})."
            ) from None
        after_crash = bool(os.read(descriptor, 32))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        try:
            yield DataDirectory(root, after_crash)
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _make_rooms(root: Path) -> None:
    if not root.exists():
        root.mkdir(parents=True)
        # PostgreSQL does not run as root; its user must pass through here, and see nothing.
        root.chmod(0o711 if os.geteuid() == 0 else 0o700)
    for room in ("logs", "valkey"):
        (root / room).mkdir(mode=0o700, exist_ok=True)


def open_log(path: Path) -> int:
    """A descriptor to append to a private log, the old one put aside when it grew large."""
    if path.exists() and path.stat().st_size > _ROTATE_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return _open_private(path, os.O_WRONLY | os.O_APPEND)


def _open_private(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CREAT, 0o600)
    leave_to_owner(descriptor, path.parent)
    return descriptor


def tail(path: Path, *, since: int = 0) -> str:
    """The end of a log, of what was written after the byte `since`."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(since if since <= size else 0, size - 8192))
            return last_lines(stream.read().decode("utf-8", "replace"))
    except OSError:
        return ""


def last_lines(text: str, count: int = 10) -> str:
    """As much of an output as tells why it ended."""
    return "\n".join(text.strip().splitlines()[-count:])
