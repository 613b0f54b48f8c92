"""Settings from the environment: typed, checked at start, each known by name.

Every setting has an `X_FILE` twin that names a file holding the value, for secrets that
should not stand in a process's environment. A bad value stops the start with one line that
names the variable, the value and what is allowed.
"""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from environs import EnvError, FileAwareEnv

_reader = FileAwareEnv(strip_whitespace=True)


@dataclass(frozen=True)
class Setting:
    """One declared setting, as `manage.py doctor` lists it."""

    name: str
    value: Any
    allowed: str
    secret: bool


#: Every setting read so far, by name.
DECLARED: dict[str, Setting] = {}


def _refuse(name: str, value: str, allowed: str) -> NoReturn:
    sys.stderr.write(f"{name}={value!r} is not possible: it must be {allowed}.\n")
    raise SystemExit(2)


def _raw(name: str) -> str | None:
    try:
        value = _reader.str(name, None)
    except (ValueError, UnicodeDecodeError):
        _refuse(f"{name}_FILE", "…", "the path of a readable text file")
    return value or None


def _declare(
    name: str, default: Any, parse: Callable[[str], Any], allowed: str, *, secret: bool = False
) -> Any:
    """Read one setting. `parse` raises ValueError for what is not allowed."""
    raw = _raw(name)
    try:
        value = default if raw is None else parse(raw)
    except (ValueError, EnvError):
        _refuse(name, "(secret)" if secret else str(raw), allowed)
    DECLARED[name] = Setting(name, value, allowed, secret)
    return value


def text(
    name: str,
    default: str | None = None,
    *,
    allowed: str = "text",
    check: Callable[[str], bool] = lambda value: True,
    secret: bool = False,
) -> Any:
    """A text setting; `check` says whether a value is allowed."""

    def parse(raw: str) -> str:
        if not check(raw):
            raise ValueError(raw)
        return raw

    return _declare(name, default, parse, allowed, secret=secret)


def whole(name: str, default: int, *, minimum: int, maximum: int) -> int:
    """A whole number within bounds, both included."""

    def parse(raw: str) -> int:
        value = int(raw)
        if not minimum <= value <= maximum:
            raise ValueError(raw)
        return value

    allowed = f"a whole number from {minimum} to {maximum}"
    return int(_declare(name, default, parse, allowed))


def flag(name: str, default: bool) -> bool:
    """Yes or no."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

    def parse(raw: str) -> bool:
        if raw.lower() not in words:
            raise ValueError(raw)
        return words[raw.lower()]

    return bool(_declare(name, default, parse, "1, true, yes, 0, false or no"))


def choice(name: str, default: str, options: tuple[str, ...]) -> str:
    """One of a few words."""

    def parse(raw: str) -> str:
        if raw not in options:
            raise ValueError(raw)
        return raw

    return str(_declare(name, default, parse, "one of " + ", ".join(options)))


def words(
    name: str,
    default: list[str],
    *,
    allowed: str = "a comma-separated list",
    check: Callable[[str], bool] = lambda word: True,
) -> list[str]:
    """A comma-separated list; `check` says whether a word is allowed."""

    def parse(raw: str) -> list[str]:
        found = [word.strip() for word in raw.split(",") if word.strip()]
        if not found or not all(check(word) for word in found):
            raise ValueError(raw)
        return found

    return list(_declare(name, default, parse, allowed))


def required(name: str, value: Any, why: str) -> None:
    """Stop the start when a setting that has no default is missing."""
    if value in (None, ""):
        sys.stderr.write(f"{name} is not set: {why}.\n")
        raise SystemExit(2)


#: Names of the relay's that are no settings: the trial and its demo pass them on.
_NOT_SETTINGS = re.compile(r"RELAY_(TRIAL_\w+|DATA_DIR|DEMO_PROVISIONER_TOKEN(_FILE)?|FAILPOINTS)")
#: What Kubernetes and Docker tell every container of a service that is called relay or wake.
_SERVICE_LINK = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(TCP|UDP)\w*)")


def refuse_unknown() -> None:
    """Stop the start at a RELAY_ or WAKE_ variable that is no setting: it was meant to be one."""
    for name in sorted(os.environ):
        if not name.startswith(("RELAY_", "WAKE_")) or _NOT_SETTINGS.fullmatch(name):
            continue
        is_known = name in DECLARED or name.removesuffix("_FILE") in DECLARED
        if is_known or _SERVICE_LINK.fullmatch(name) or _is_link(name):
            continue
        near = get_close_matches(name, DECLARED, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        sys.stderr.write(f"{name} is not a setting of the relay.{hint}\n")
        raise SystemExit(2)


def _is_link(name: str) -> bool:
    return name.endswith("_PORT") and "://" in os.environ.get(name, "")


def existing_file(name: str) -> Path | None:
    """The path of a file that must be there when it is named."""
    return _declare(name, None, _file, "the path of a readable file")


def _file(raw: str) -> Path:
    path = Path(raw)
    if not path.is_file():
        raise ValueError(raw)
    return path
