"""The relay's own processes: one table (DESIGN section 5)."""

import sys
from collections.abc import Mapping
from pathlib import Path

from config.trial import ports
from config.trial.directory import DataDirectory
from config.trial.processes import Program, Step

PROJECT = Path(__file__).resolve().parents[2]
_PYTHON = sys.executable
_MANAGE = [_PYTHON, str(PROJECT / "manage.py")]


def _table(env: Mapping[str, str], host: str, port: int) -> list[tuple[str, str, list[str]]]:
    """Name, role and command of each, in the order of their start."""
    granian = [
        _PYTHON, "-m", "granian", "--interface", "wsgi",
        "--host", ports.numeric(host), "--port", str(port), "--http", "1", "--no-ws",
        "--workers", env.get("RELAY_WEB_WORKERS", "2"),
        "--blocking-threads", env.get("RELAY_WEB_WAITING", "64"),
        "--blocking-threads-idle-timeout", "600",
        "--workers-kill-timeout", "5",
        "--no-access-log",  # it would hold paths and addresses (DESIGN rule 4.9)
        "config.wsgi:application",
    ]  # fmt: skip
    return [
        ("web", "web", granian),
        ("tick", "clock", [*_MANAGE, "tick"]),
        ("dispatch_outbox", "worker", [*_MANAGE, "dispatch_outbox"]),
        ("work-wake", "worker", [*_MANAGE, "work", "wake"]),
        ("work-maintenance", "worker", [*_MANAGE, "work", "maintenance"]),
    ]


def relay_programs(
    directory: DataDirectory, env: Mapping[str, str], host: str, port: int
) -> list[Program]:
    """Every process of the relay, ready to start. `env` is their whole environment."""
    roles = {"web": {"PROMETHEUS_MULTIPROC_DIR": str(directory.fresh_room("metrics"))}}
    return [
        Program(
            name=name,
            argv=argv,
            env={**env, **roles.get(role, {}), "RELAY_ROLE": role, "PYTHONUNBUFFERED": "1"},
            cwd=PROJECT,
            log=directory.log(name),
            # A granian worker that is still importing has its parent's handlers: it takes a
            # SIGTERM and does nothing, and the parent waits for it until its kill timeout.
            insist=name == "web",
        )
        for name, role, argv in _table(env, host, port)
    ]


def manage(directory: DataDirectory, env: Mapping[str, str], *arguments: str) -> Step:
    """One `manage.py` command of the start-up."""
    return Step(argv=[*_MANAGE, *arguments], env=env, cwd=PROJECT, log=directory.log("setup"))
