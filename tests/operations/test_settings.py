"""A setting that cannot be right stops the start with one line that says what is allowed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT, test_database_url


def start(**settings: str) -> subprocess.CompletedProcess[str]:
    """`manage.py sweep` under these settings; an empty one is taken away."""
    environment = {**os.environ, "DATABASE_URL": test_database_url(), **settings}
    environment = {name: value for name, value in environment.items() if value != ""}
    return subprocess.run(
        [sys.executable, "manage.py", "sweep", "--json"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


IMPOSSIBLE = [
    ("RELAY_SHARDS", "abc", "a whole number from 1 to 1024"),
    ("RELAY_SHARDS", "0", "a whole number from 1 to 1024"),
    ("RELAY_SHARDS", "1025", "a whole number from 1 to 1024"),
    ("TRUSTED_PROXY_COUNT", "-1", "a whole number from 0 to 10"),
    ("TRUSTED_PROXY_COUNT", "1.5", "a whole number from 0 to 10"),
    ("LOG_LEVEL", "LOUD", "one of DEBUG, INFO, WARNING, ERROR"),
    ("DATABASE_URL", "mysql://x/y", "a postgresql:// URL"),
    ("REDIS_URL", "http://x", "a redis://, rediss:// or unix:// URL"),
    ("SECRET_KEY", "short", "at least 32 characters"),
    ("METRICS_TOKEN", "short", "at least 16 characters"),
    ("RELAY_SWEEP_BATCH", "501", "a whole number from 1 to 500"),
    ("RELAY_PGBOUNCER", "maybe", "1, true, yes, 0, false or no"),
    ("RELAY_KEYS_FILE", "/nowhere", "the path of a readable file"),
    ("ALLOWED_HOSTS", " , ", "a comma-separated list"),
    ("RELAY_URL", "relay.example", "an http:// or https:// URL"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), IMPOSSIBLE)
def test_an_impossible_value_is_named_with_what_is_allowed(
    name: str, value: str, allowed: str
) -> None:
    done = start(**{name: value})
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{name}=")
    assert line.endswith(f"it must be {allowed}.")
    secret = name in {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "METRICS_TOKEN"}
    assert (value in line) is not secret


def test_a_setting_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "shards"
    file.write_text("many\n")
    done = start(RELAY_SHARDS="", RELAY_SHARDS_FILE=str(file))
    assert done.returncode == 2
    assert "RELAY_SHARDS='many' is not possible" in done.stderr
    file.write_text("16\n")
    assert start(RELAY_SHARDS="", RELAY_SHARDS_FILE=str(file)).returncode == 0


def test_a_file_that_is_not_there_is_named() -> None:
    done = start(METRICS_TOKEN_FILE="/nowhere")
    assert done.returncode == 2
    assert done.stderr.startswith("METRICS_TOKEN_FILE=")


def test_another_number_of_shards_than_the_database_has_is_refused() -> None:
    done = start(RELAY_SHARDS="8")
    assert done.returncode == 2
    assert done.stderr == (
        "RELAY_SHARDS=8 is not possible: it must be 16, with which this database was made.\n"
    )


def test_a_keys_file_without_a_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text('{"cursor": {"current": 1, "keys": {"2": "AAAA"}}}')
    done = start(RELAY_KEYS_FILE=str(file))
    assert done.returncode == 2
    assert done.stderr == f"RELAY_KEYS_FILE: no usable keys for cursor in {file}.\n"


def test_a_missing_database_url_is_named() -> None:
    done = start(DATABASE_URL="", DATABASE_URL_FILE="")
    # Where a trial was started before, its env file steps in; a clean clone has none.
    if not (PROJECT / ".relay" / "env").exists():
        assert done.returncode == 2
        assert done.stderr.startswith("DATABASE_URL is not set: ")


def test_a_database_that_is_away_is_one_line() -> None:
    done = start(DATABASE_URL="postgresql://relay@127.0.0.1:1/relay")
    assert done.returncode == 1
    assert "PostgreSQL does not answer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RELAY_SHARD", " Did you mean RELAY_SHARDS?"),
        ("RELAY_SWEEP_BACTH_FILE", " Did you mean RELAY_SWEEP_BATCH?"),
        ("WAKE_GATEWAY_URI", " Did you mean WAKE_GATEWAY_URL?"),
        ("WAKE_X", ""),
    ],
)
def test_a_misspelt_setting_stops_the_start(name: str, hint: str) -> None:
    done = start(**{name: "16"})
    assert done.returncode == 2
    assert done.stderr == f"{name} is not a setting of the relay.{hint}\n"


def test_what_a_container_is_told_of_a_service_named_relay_is_no_setting() -> None:
    links = {
        "RELAY_SERVICE_HOST": "10.0.0.1",
        "RELAY_SERVICE_PORT_HTTP": "8000",
        "RELAY_PORT": "tcp://10.0.0.1:8000",
        "RELAY_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert start(**links).returncode == 0
    assert start(RELAY_PORT="8000").returncode == 2
