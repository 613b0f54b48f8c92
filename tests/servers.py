"""A pytest plugin: the PostgreSQL and the Valkey that the tests run on.

With DATABASE_URL set (and REDIS_URL) the tests use those. Otherwise both are started from the
wheels, as `manage.py up` does, in a directory that is gone afterwards. They start once, in the
process that the user started; pytest-xdist's workers find the addresses in their environment,
and pytest-django gives each worker a database of its own.
"""

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from config.trial.directory import DataDirectory
from config.trial.servers import Servers
from config.trial.signals import Signals
from config.trial.supervisor import Supervisor


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def start_servers(root: Path, *, with_postgres: bool, with_valkey: bool) -> dict[str, str]:
    """Start servers of our own below `root`; they end with this process."""
    for room in ("logs", "valkey"):
        (root / room).mkdir(parents=True, exist_ok=True)
    signals = Signals()
    supervisor = Supervisor(signals, _say)

    def stop() -> None:
        with signals:
            supervisor.stop()
        shutil.rmtree(root, ignore_errors=True)

    atexit.register(stop)
    with signals:
        servers = Servers(DataDirectory(root), supervisor, signals, lambda text: None, {})
        return servers.start(with_postgres=with_postgres, with_valkey=with_valkey)


def _prepare_environment() -> None:
    os.environ.setdefault("SECRET_KEY", "tests-" + secrets.token_urlsafe(32))
    os.environ.setdefault("RELAY_TRIAL", "1")
    os.environ.setdefault("RELAY_WEB_THREADS", "8")  # races inside a test's process need seats
    wanted = {
        "with_postgres": "DATABASE_URL" not in os.environ,
        "with_valkey": "REDIS_URL" not in os.environ,
    }
    if any(wanted.values()):
        root = Path(tempfile.mkdtemp(prefix="relay-tests-"))
        for name, value in start_servers(root, **wanted).items():
            if name.endswith("_URL") and not name.startswith("RELAY_"):
                os.environ[name] = value


_prepare_environment()
