"""`manage.py up` as its users meet it: real processes, real signals, a data directory each."""

import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.trial.envfile import read_env_file

PROJECT = Path(__file__).resolve().parents[2]
OPERATORS = re.compile(
    r"(DATABASE_URL|REDIS_URL|SECRET_KEY|ALLOWED_HOSTS|METRICS_TOKEN|RELAY_\w+|WAKE_\w+)(_FILE)?"
)


class Up:
    """One run of the command, and everything that can be seen of it from outside."""

    def __init__(self, data_dir: Path, *arguments: str, **environment: str) -> None:
        self.data_dir = data_dir
        self._stderr = data_dir.with_name(f"{data_dir.name}.stderr.{time.monotonic_ns()}")
        clean = {name: text for name, text in os.environ.items() if not OPERATORS.fullmatch(name)}
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(PROJECT / "manage.py"), "up", "--data-dir", str(data_dir)]
                + (list(arguments) or ["--port", "0", "--json"]),
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**clean, **environment},
                cwd=data_dir.parent,
            )
        self._facts: dict[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The one line of JSON, waited for."""
        if self._facts is None:
            assert self.process.stdout
            ready, _, _ = select.select([self.process.stdout], [], [], 60)
            line = self.process.stdout.readline() if ready else b""
            assert line, f"it never became ready:\n{self.errors()}"
            self._facts = json.loads(line)
        return self._facts

    def errors(self) -> str:
        return self._stderr.read_text()

    def said(self, pattern: str) -> re.Match[str]:
        """Wait for a line on stderr."""
        return eventually(lambda: re.search(pattern, self.errors()), f"{pattern!r} to be said")

    def end(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Signal it; its exit code, and what else it wrote to stdout."""
        self.process.send_signal(number)
        return self.finish()

    def finish(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=30)
        return self.process.returncode, output.decode()


def eventually(probe: Callable[[], Any], what: str, seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)
    return found


def left_of(data_dir: Path) -> list[psutil.Process]:
    """Every process that belongs to the trial of this directory, whoever its parent is."""
    found = []
    for process in psutil.process_iter():
        try:
            traces = [process.cwd(), *process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(data_dir) in trace for trace in traces):
            found.append(process)
    return found


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def new_place() -> Iterator[Path]:
    """A directory for one trial, and nothing of it afterwards.

    Not one of pytest's: whenever another pytest starts it closes those again, to the user that
    PostgreSQL runs as too.
    """
    with tempfile.TemporaryDirectory(prefix="relay-up-") as directory:
        try:
            yield Path(directory)
        finally:  # what a failed test could not end
            for process in left_of(Path(directory)):
                process.kill()


@pytest.fixture
def place() -> Iterator[Path]:
    with new_place() as directory:
        yield directory


@pytest.fixture(scope="module")
def trial() -> Iterator[Up]:
    """One running trial for every test that leaves it as it was."""
    with new_place() as directory:
        up = Up(directory / "data")
        try:
            assert up.facts
            yield up
        finally:
            code, rest = up.end()
        assert (code, rest) == (0, "")
        assert left_of(up.data_dir) == []


def test_the_facts_lead_to_everything(trial: Up) -> None:
    facts = trial.facts
    assert set(facts) == {
        "url", "admin_url", "admin_user", "admin_password", "provisioner_token",
        "database_url", "redis_url", "env", "pids",
    }  # fmt: skip
    assert answers(facts["url"] + "/readyz")
    assert facts["admin_url"] == facts["url"] + "/admin/"
    assert facts["admin_user"] == "admin"
    assert facts["admin_password"]
    assert facts["provisioner_token"].startswith("rlp1.")
    assert {"postgres", "valkey", "web", "tick"} <= set(facts["pids"])
    assert all(psutil.pid_exists(pid) for pid in facts["pids"].values())


def test_the_first_credentials_open_the_api_and_the_console(trial: Up) -> None:
    facts = trial.facts
    made = httpx.put(
        f"{facts['url']}/v1/devices/{uuid4()}",
        json={"token_sha256": "0" * 64},
        headers={"Authorization": f"Bearer {facts['provisioner_token']}"},
    )
    assert made.status_code == 201
    login = facts["admin_url"] + "login/?next=/admin/"
    with httpx.Client() as browser:
        browser.get(login)
        form = {"username": facts["admin_user"], "password": facts["admin_password"]}
        form["csrfmiddlewaretoken"] = browser.cookies["csrftoken"]
        entered = browser.post(login, data=form, headers={"Referer": login})
    assert (entered.status_code, entered.headers["location"]) == (302, "/admin/")


def test_the_env_file_is_private_and_holds_the_same(trial: Up) -> None:
    file = trial.data_dir / "env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_env_file(file) == trial.facts["env"]
    sourced = subprocess.run(
        ["sh", "-c", f"set -a; . '{file}'; printf '%s' \"$DATABASE_URL\""],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sourced.stdout == trial.facts["database_url"]


def test_postgres_keeps_its_promises_and_our_secrets(trial: Up) -> None:
    with psycopg.connect(trial.facts["database_url"]) as connection:

        def shown(name: str) -> str:
            row = connection.execute(f"SHOW {name}").fetchone()
            assert row
            return str(row[0])

        assert shown("server_version").startswith("18.")
        assert [shown(name) for name in ("fsync", "synchronous_commit")] == ["on", "on"]
        assert shown("log_min_error_statement") == "panic"
        assert shown("log_error_verbosity") == "terse"
        assert shown("listen_addresses") == "127.0.0.1"
        assert connection.info.user == connection.info.dbname == "relay"
    password = trial.facts["database_url"].split(":")[2].split("@")[0]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(trial.facts["database_url"].replace(password, "guess"))


def test_valkey_refuses_strangers_and_evicts_nothing(trial: Up) -> None:
    with redis.Redis.from_url(trial.facts["redis_url"]) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        port = client.connection_pool.connection_kwargs["port"]
    at_once = Retry(NoBackoff(), 0)
    with (
        redis.Redis(port=port, retry=at_once) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    command = psutil.Process(trial.facts["pids"]["valkey"]).cmdline()
    assert trial.facts["redis_url"].split(":")[2].split("@")[0] not in " ".join(command)


def test_the_credentials_are_no_argument_and_in_no_log(trial: Up) -> None:
    logs = "".join(log.read_text() for log in (trial.data_dir / "logs").iterdir())
    for secret in ("admin_password", "provisioner_token"):
        assert trial.facts[secret] not in logs
        assert trial.facts[secret] not in trial.errors()


def test_a_second_trial_on_the_same_data_is_refused(trial: Up) -> None:
    second = Up(trial.data_dir)
    assert second.finish() == (1, "")
    expected = f"already in use by another `manage.py up` (pid {trial.process.pid})"
    assert expected in second.errors()
    assert second.errors().count("\n") == 1


def test_a_taken_port_is_refused_before_anything_starts(trial: Up, place: Path) -> None:
    port = trial.facts["url"].rpartition(":")[2]
    other = Up(place / "data", "--port", port)
    assert other.finish() == (1, "")
    assert f"127.0.0.1 port {port}" in other.errors()
    assert other.errors().count("\n") == 1
    assert not (place / "data" / "postgres").exists()


@pytest.mark.parametrize("name", ["tick", "web", "valkey", "postgres"])
def test_a_killed_process_comes_back(trial: Up, name: str) -> None:
    before = len(re.findall(rf"{name} ended", trial.errors()))
    pid = current_pid(trial, name)
    workers = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: len(re.findall(rf"{name} ended \(signal 9\)", trial.errors())) > before,
        f"{name} to be started again",
    )
    assert current_pid(trial, name) != pid
    eventually(lambda: not any(worker.is_running() for worker in workers), "its workers to go")
    eventually(lambda: answers(trial.facts["url"] + "/readyz"), "/readyz to answer 200")
    with redis.Redis.from_url(trial.facts["redis_url"]) as client:
        eventually(lambda: pings(client), "Valkey at the same address")


def current_pid(trial: Up, name: str) -> int:
    """The pid of the facts, or of the last restart that was said."""
    restarts = re.findall(rf"{name} ended .* pid (\d+)", trial.errors())
    return int(restarts[-1]) if restarts else int(trial.facts["pids"][name])


def pings(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_the_operators_own_servers_are_used_and_left_alone(trial: Up, place: Path) -> None:
    own = trial.facts["database_url"].rpartition("/")[0] + "/operators"
    with psycopg.connect(trial.facts["database_url"], autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS operators")
        connection.execute("CREATE DATABASE operators")
    queue = trial.facts["redis_url"].rpartition("/")[0] + "/1"
    up = Up(place / "data", DATABASE_URL=own, REDIS_URL=queue, LOG_LEVEL="WARNING")
    try:
        assert not {"postgres", "valkey"} & set(up.facts["pids"])
        assert (up.facts["database_url"], up.facts["redis_url"]) == (own, queue)
        assert up.facts["env"]["LOG_LEVEL"] == "WARNING"
        assert up.facts["admin_password"] != trial.facts["admin_password"]
        assert not (place / "data" / "postgres").exists()
    finally:
        code, rest = up.end(signal.SIGTERM)
    assert (code, rest) == (0, "")
    assert answers(trial.facts["url"] + "/readyz")


def test_a_killed_trial_leaves_nothing_and_the_next_finds_everything(place: Path) -> None:
    data_dir = place / "data"
    first = Up(data_dir)
    with psycopg.connect(first.facts["database_url"]) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    first.process.kill()
    first.process.communicate()
    eventually(lambda: not left_of(data_dir), "every child of the killed trial to go")

    started = time.monotonic()
    second = Up(data_dir)
    try:
        for fact in ("admin_user", "admin_password", "provisioner_token", "database_url"):
            assert second.facts[fact] == first.facts[fact]
        assert second.facts["env"]["SECRET_KEY"] == first.facts["env"]["SECRET_KEY"]
        assert time.monotonic() - started < 10
        with psycopg.connect(second.facts["database_url"]) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
    finally:
        code, rest = second.end(signal.SIGHUP)
    assert (code, rest) == (0, "")
    assert left_of(data_dir) == []
    assert not (data_dir / "postgres" / "postmaster.pid").exists()


def test_credentials_that_were_changed_since_are_not_printed_again(place: Path) -> None:
    first = Up(place / "data")
    remembered = read_env_file(place / "data" / "env")
    for command in (
        ("admin", "reset-password", "--username", "admin"),
        ("provisioner", "rotate", "--name", "trial"),
    ):
        subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), *command],
            env={**os.environ, **remembered, **first.facts["env"]},
            capture_output=True,
            check=True,
        )
    assert first.end() == (0, "")

    second = Up(place / "data")
    try:
        assert second.facts["admin_password"] is None
        said = second.errors()
        assert "The first admin's secret was changed or ended since." in said
        assert "  manage.py admin reset-password --username admin\n" in said
        token = second.facts["provisioner_token"]
        assert token != first.facts["provisioner_token"]
        made = httpx.put(
            f"{second.facts['url']}/v1/devices/{uuid4()}",
            json={"token_sha256": "ab" * 32},
            headers={"Authorization": f"Bearer {token}"},
        )
        assert made.status_code == 201
        kept = read_env_file(place / "data" / "env")
        assert kept["RELAY_DEMO_PROVISIONER_TOKEN"] == token
        assert "RELAY_TRIAL_ADMIN_PASSWORD" not in kept
    finally:
        assert second.end() == (0, "")


@pytest.mark.parametrize("moment", ["Making the PostgreSQL database", "Migrating"])
def test_a_stop_during_the_start_leaves_nothing(place: Path, moment: str) -> None:
    up = Up(place / "data")
    up.said(moment)
    time.sleep(0.1)
    assert up.end() == (0, "")
    assert left_of(place / "data") == []


def test_a_port_that_is_none_is_refused_in_one_line(place: Path) -> None:
    up = Up(place / "data", "--port", "http")
    assert up.finish() == (2, "")
    assert up.errors() == "Error: --port http: a port is a number from 0 to 65535.\n"
    assert not (place / "data").exists()


def test_a_data_directory_that_cannot_be_is_refused_in_one_line(place: Path) -> None:
    (place / "file").write_text("in the way")
    up = Up(place / "file")
    assert up.finish() == (1, "")
    assert str(place / "file") in up.errors()
    assert up.errors().count("\n") == 1


def test_a_postgres_that_does_not_start_says_why(place: Path) -> None:
    broken = place / "data" / "postgres"
    broken.mkdir(parents=True)
    (broken / "PG_VERSION").write_text("3\n")
    (place / "data" / "env").write_text(
        "RELAY_TRIAL_DATABASE=embedded\nDATABASE_URL=postgresql://relay:x@127.0.0.1:1/relay\n"
    )
    up = Up(place / "data")
    assert up.finish() == (1, "")
    assert "postgres.log" in up.errors()
    assert "postgresql.conf" in up.errors()  # the reason that PostgreSQL itself gave
    assert left_of(place / "data") == []
