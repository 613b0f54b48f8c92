"""Places where a fault test kills or stalls a process: between two statements, every time.

    RELAY_FAILPOINTS="outbox.claimed=kill"          the process kills itself there
    RELAY_FAILPOINTS="worker.started=sleep:3"       it sleeps there, in seconds

Inert unless that variable is set, and outside a trial a process that finds it set does not
start. Only what a test cannot reach from outside deserves a point.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

VARIABLE = "RELAY_FAILPOINTS"

#: Every point there is.
POINTS = frozenset(
    {
        "outbox.claimed",  # claimed and committed, not published
        "outbox.published",
        "worker.popped",  # taken out of Redis, nothing done
        "worker.started",  # the starts are stamped, the handler not called
        "worker.effect",  # the handler is back, nothing settled
        "worker.settled",  # settled, the job not ended
    }
)
_ACTION = re.compile(r"([a-z.]+)=(kill|sleep:\d+(?:\.\d+)?)")
_armed: dict[str, Callable[[], None]] = {}


def arm(text: str, *, in_trial: bool) -> None:
    """Set the points that `text` names; an empty one sets none. Stops the start otherwise."""
    _armed.clear()
    if not text:
        return
    if not in_trial:
        _refuse("is for fault tests: it needs RELAY_TRIAL=1")
    for entry in text.split(","):
        match = _ACTION.fullmatch(entry.strip())
        if match is None or match[1] not in POINTS:
            _refuse(f"{entry!r} is not possible: it must be NAME=kill or NAME=sleep:SECONDS")
        _armed[match[1]] = _action(match[2])


def hit(name: str) -> None:
    """This process is at that point."""
    if _armed:
        _armed.get(name, _nothing)()


def _action(text: str) -> Callable[[], None]:
    kind, _, seconds = text.partition(":")
    if kind == "kill":
        return lambda: os.kill(os.getpid(), signal.SIGKILL)
    return lambda: time.sleep(float(seconds))


def _nothing() -> None:
    return


def _refuse(text: str) -> NoReturn:
    sys.stderr.write(f"{VARIABLE} {text}.\n")
    raise SystemExit(2)
