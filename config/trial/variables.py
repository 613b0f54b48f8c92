"""Which settings the trial's processes share, and where each comes from.

What belongs to the data (the key, the shards, the credentials) is remembered in the env file.
Everything else is what today's environment says, or a default.
"""

import hashlib
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from config.trial.directory import DataDirectory
from config.trial.envfile import read_env_file
from config.trial.errors import TrialError

EMBEDDED = "embedded"
#: Whose data the rest of the env file is about: EMBEDDED, or a digest of the operator's URL.
DATABASE_MARK = "RELAY_TRIAL_DATABASE"
ADMIN_USER, ADMIN_PASSWORD = "RELAY_TRIAL_ADMIN_USER", "RELAY_TRIAL_ADMIN_PASSWORD"
PROVISIONER_TOKEN = "RELAY_DEMO_PROVISIONER_TOKEN"  # noqa: S105 - the name, no secret

_REMEMBERED = (
    "SECRET_KEY", "RELAY_SHARDS", "RELAY_KEYS_FILE",
    ADMIN_USER, ADMIN_PASSWORD, PROVISIONER_TOKEN,
)  # fmt: skip
_OPERATORS = re.compile(
    r"(RELAY_\w+|WAKE_\w+|DATABASE_URL|REDIS_URL|SECRET_KEY|ALLOWED_HOSTS|TRUSTED_PROXY_COUNT"
    r"|METRICS_TOKEN|LOG_LEVEL)(_FILE)?"
)
_OURS = re.compile(r"RELAY_(ROLE|TRIAL|TRIAL_\w+|URL|DATA_DIR|DEMO_\w+)")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def given(environment: Mapping[str, str], name: str) -> str | None:
    """A setting of the operator's, directly or by its `X_FILE` twin; None when it is not set."""
    if environment.get(name):
        return environment[name]
    if file := environment.get(f"{name}_FILE"):
        try:
            return Path(file).read_text(encoding="utf-8").strip() or None
        except (OSError, ValueError) as error:
            raise TrialError(f"{name}_FILE={file} cannot be read.", exit_code=2) from error
    return None


def operators_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a shell sourced from the env file of an embedded trial.

    Its DATABASE_URL would pass for the operator's own server, which it is not.
    """
    sourced: dict[str, str] = {}
    if data_dir := environment.get("RELAY_DATA_DIR"):
        sourced = _read(Path(data_dir) / "env")
    if sourced.get(DATABASE_MARK) != EMBEDDED:
        sourced = {}
    return {
        name: value
        for name, value in environment.items()
        if sourced.get(name) != value and not _OURS.fullmatch(name)
    }


def _read(path: Path) -> dict[str, str]:
    try:
        return read_env_file(path)
    except ValueError as error:  # somebody edited it
        raise TrialError(f"{error}.") from error


def recall(directory: DataDirectory, database_url: str | None) -> dict[str, str]:
    """What an earlier trial on the same database left in the env file.

    Another database has other credentials: its file is put aside under its mark, so that
    going back to it finds them again.
    """
    mark = EMBEDDED
    if database_url:
        parts = urlsplit(database_url)
        where = f"{parts.netloc.rpartition('@')[2]}{parts.path}?{parts.query}"
        mark = hashlib.sha256(where.encode()).hexdigest()[:12]
    current = _read(directory.env_file)
    if current and current.get(DATABASE_MARK) != mark:
        aside = f"env.{current.get(DATABASE_MARK, 'old')}"
        directory.env_file.replace(directory.root / aside)
        current = _read(directory.root / f"env.{mark}")
    return {**current, DATABASE_MARK: mark}


def compose(
    environment: Mapping[str, str], memory: Mapping[str, str], computed: Mapping[str, str]
) -> dict[str, str]:
    """The variables for the env file: remembered, then the operator's, then ours."""
    values = {name: memory[name] for name in (*_REMEMBERED, DATABASE_MARK) if name in memory}
    theirs = {name: text for name, text in environment.items() if _OPERATORS.fullmatch(name)}
    for name, value in (theirs | dict(computed)).items():
        _set(values, name, value)
    return values


def _set(values: dict[str, str], name: str, value: str) -> None:
    """Set one; its `X_FILE` twin goes, as both at once would be two answers."""
    if value:
        values.pop(name.removesuffix("_FILE") if name.endswith("_FILE") else f"{name}_FILE", None)
        values[name] = value


def allowed_hosts(environment: Mapping[str, str], host: str) -> str:
    """The operator's names, and those by which this machine itself comes in."""
    names = [name.strip() for name in (given(environment, "ALLOWED_HOSTS") or "").split(",")]
    bind = f"[{host}]" if ":" in host else host
    if is_wildcard(host):
        bind = socket.gethostname()
    return ",".join(dict.fromkeys(name for name in (*names, *_LOCAL_HOSTS, bind) if name))


def is_wildcard(host: str) -> bool:
    """Whether the server listens on every address."""
    return host in ("0.0.0.0", "::", "")  # noqa: S104 - recognised, not bound


def base_url(host: str, port: int) -> str:
    """Where a client on this machine finds the relay."""
    name = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def child_environment(environment: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """What a child gets: everything the operator has, with ours on top.

    The first credentials stay out: they are for people and for `demo`, not for the relay.
    """
    whole = dict(environment)
    for name, value in values.items():
        if name not in (ADMIN_USER, ADMIN_PASSWORD, PROVISIONER_TOKEN):
            _set(whole, name, value)
    return whole
