"""The parts of the trial, one at a time; its processes are real here as well."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.trial import accounts, ports, postgres, variables
from config.trial.accounts import Account
from config.trial.directory import DataDirectory, claimed, open_log, tail
from config.trial.envfile import read_env_file, write_env_file
from config.trial.errors import TrialError
from config.trial.facts import Facts
from config.trial.processes import Program, Step
from config.trial.signals import Signals
from config.trial.story import Options
from config.trial.supervisor import Supervisor

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), max_size=40)


# --- The env file ----------------------------------------------------------------------------


@given(values=st.dictionaries(NAMES, TEXTS, max_size=5))
def test_any_text_survives_the_env_file(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]
) -> None:
    file = tmp_path_factory.mktemp("env") / "env"
    write_env_file(file, values)
    assert read_env_file(file) == values
    assert list(read_env_file(file)) == list(values)


def test_the_env_file_is_private_and_replaced_at_once(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("OLD=1\n")
    file.chmod(0o644)
    write_env_file(file, {"NEW": "a 'b'"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().splitlines()[-1] == """NEW='a '"'"'b'"'"''"""
    assert [path.name for path in tmp_path.iterdir()] == ["env"]


def test_no_env_file_is_no_variables(tmp_path: Path) -> None:
    assert read_env_file(tmp_path / "env") == {}


@pytest.mark.parametrize("text", ["A='open\n", "just words\n", "1A=x\n", "=x\n"])
def test_an_env_file_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "env").write_text(text)
    with pytest.raises(ValueError, match=str(tmp_path / "env")):
        read_env_file(tmp_path / "env")


# --- The data directory ----------------------------------------------------------------------


def test_a_claimed_directory_is_private_and_refuses_the_next(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with claimed(root) as first:
        assert first.after_crash is False
        assert root.stat().st_mode & 0o066 == 0
        with pytest.raises(TrialError, match=rf"in use .* \(pid {os.getpid()}\)"), claimed(root):
            pass
    with claimed(root) as again:
        assert again.after_crash is False


def test_a_killed_trial_is_noticed_by_the_next(tmp_path: Path) -> None:
    holder = "\n".join(
        [
            "import os, pathlib, signal, sys",
            "from config.trial.directory import claimed",
            "with claimed(pathlib.Path(sys.argv[1])):",
            "    os.kill(os.getpid(), signal.SIGKILL)",
        ]
    )
    project = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", holder, str(tmp_path)], cwd=project, check=False)
    with claimed(tmp_path) as directory:
        assert directory.after_crash is True


def test_a_log_is_private_appended_to_and_put_aside_when_large(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    for text in (b"one\n", b"two\n"):
        descriptor = open_log(log)
        os.write(descriptor, text)
        os.close(descriptor)
    assert (log.read_text(), stat.S_IMODE(log.stat().st_mode)) == ("one\ntwo\n", 0o600)
    os.truncate(log, 11 * 1024 * 1024)
    os.close(open_log(log))
    assert log.stat().st_size == 0
    assert (tmp_path / "web.log.1").stat().st_size == 11 * 1024 * 1024


def test_the_tail_shows_only_what_is_new(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_text("old\n" + "".join(f"line {number}\n" for number in range(100, 120)))
    assert tail(log, since=4 + 9 * 18) == "line 118\nline 119"
    assert tail(log, since=4).splitlines() == [f"line {number}" for number in range(110, 120)]
    assert tail(log, since=4 + 9 * 20) == ""
    assert tail(tmp_path / "missing.log") == ""


# --- Ports -----------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_preferred_port_is_kept_while_it_is_free(taken: int) -> None:
    free = ports.free_port("127.0.0.1")
    assert ports.free_port("127.0.0.1", preferred=free) == free
    assert ports.free_port("127.0.0.1", preferred=taken) != taken
    assert (ports.is_free("127.0.0.1", taken), ports.is_free("127.0.0.1", free)) == (False, True)


def test_a_taken_port_is_told_with_a_way_out(taken: int) -> None:
    with pytest.raises(TrialError, match=rf"port {taken}: .*--port 0"):
        ports.require("127.0.0.1", taken)


def test_a_foreign_address_is_told() -> None:
    with pytest.raises(TrialError, match=r"192\.0\.2\.1"):
        ports.require("192.0.2.1", 8000)


def test_a_name_to_listen_on_becomes_an_address() -> None:
    assert ports.numeric("localhost") == "127.0.0.1"
    assert ports.numeric("::1") == "::1"


@pytest.mark.parametrize("port", ["", "-1", "65536", "http", "8e3", "²"])
def test_a_port_is_a_number(tmp_path: Path, port: str) -> None:
    with pytest.raises(TrialError, match="0 to 65535") as caught:
        Options.checked("127.0.0.1", port, tmp_path, False)
    assert caught.value.exit_code == 2


# --- Which settings --------------------------------------------------------------------------


def test_the_operators_setting_wins_over_the_remembered_one() -> None:
    memory = {"SECRET_KEY": "old", "RELAY_SHARDS": "4", "LOG_LEVEL": "DEBUG"}
    values = variables.compose({"SECRET_KEY": "new", "PATH": "/bin"}, memory, {"RELAY_TRIAL": "1"})
    assert values == {"SECRET_KEY": "new", "RELAY_SHARDS": "4", "RELAY_TRIAL": "1"}


def test_a_setting_and_its_file_twin_never_stand_together() -> None:
    memory = {"SECRET_KEY": "old"}
    assert variables.compose({"SECRET_KEY_FILE": "/k"}, memory, {}) == {"SECRET_KEY_FILE": "/k"}
    child = variables.child_environment({"ALLOWED_HOSTS_FILE": "/h"}, {"ALLOWED_HOSTS": "a"})
    assert child == {"ALLOWED_HOSTS": "a"}


def test_the_relay_itself_does_not_get_the_first_credentials() -> None:
    values = {"RELAY_TRIAL": "1", "RELAY_TRIAL_ADMIN_PASSWORD": "p"}
    values |= {"RELAY_TRIAL_ADMIN_USER": "u", "RELAY_DEMO_PROVISIONER_TOKEN": "t"}
    assert variables.child_environment({"PATH": "/bin"}, values) == {
        "PATH": "/bin",
        "RELAY_TRIAL": "1",
    }


def test_a_setting_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://h/db\n")
    environment = {"DATABASE_URL_FILE": str(tmp_path / "url"), "REDIS_URL": ""}
    assert variables.given(environment, "DATABASE_URL") == "postgresql://h/db"
    assert variables.given(environment, "REDIS_URL") is None
    with pytest.raises(TrialError, match="DATABASE_URL_FILE"):
        variables.given({"DATABASE_URL_FILE": str(tmp_path / "none")}, "DATABASE_URL")


def test_a_sourced_env_file_does_not_pass_for_the_operators_server(tmp_path: Path) -> None:
    file = {
        "RELAY_TRIAL_DATABASE": "embedded",
        "DATABASE_URL": "postgresql://relay:x@127.0.0.1:1/relay",
        "RELAY_DATA_DIR": str(tmp_path),
    }
    write_env_file(tmp_path / "env", file)
    assert variables.operators_environment({**file, "LOG_LEVEL": "DEBUG"}) == {"LOG_LEVEL": "DEBUG"}
    theirs = {**file, "DATABASE_URL": "postgresql://elsewhere/relay"}
    assert set(variables.operators_environment(theirs)) == {"DATABASE_URL"}


def test_each_database_keeps_its_credentials(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    own = {"RELAY_TRIAL_DATABASE": "embedded", "RELAY_TRIAL_ADMIN_PASSWORD": "embedded one"}
    write_env_file(directory.env_file, own)
    theirs = variables.recall(directory, "postgresql://u:first@db.example/relay")
    assert set(theirs) == {"RELAY_TRIAL_DATABASE"}
    write_env_file(directory.env_file, {**theirs, "RELAY_TRIAL_ADMIN_PASSWORD": "their one"})
    assert variables.recall(directory, None) == own
    write_env_file(directory.env_file, own)
    again = variables.recall(directory, "postgresql://u:second@db.example/relay")
    assert again["RELAY_TRIAL_ADMIN_PASSWORD"] == "their one"


def test_this_machine_may_always_come_in() -> None:
    local = "localhost,127.0.0.1,[::1]"
    assert variables.allowed_hosts({}, "127.0.0.1") == local
    assert variables.allowed_hosts({}, "192.168.0.7") == f"{local},192.168.0.7"
    assert variables.allowed_hosts({"ALLOWED_HOSTS": "a, b"}, "::1") == f"a,b,{local}"
    assert variables.allowed_hosts({}, "::") == f"{local},{socket.gethostname()}"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),  # noqa: S104
        ("::1", "http://[::1]:8000"),
        ("::", "http://[::1]:8000"),
        ("relay.example", "http://relay.example:8000"),
    ],
)
def test_the_url_is_one_that_a_client_can_use(host: str, url: str) -> None:
    assert variables.base_url(host, 8000) == url


# --- Processes and their supervisor ----------------------------------------------------------


def program(tmp_path: Path, script: str, name: str = "web", wave: int = 1) -> Program:
    return Program(
        name=name,
        argv=["sh", "-c", script],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        log=tmp_path / f"{name}.log",
        wave=wave,
    )


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals() as signals:
        yield signals


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def supervisor(signals: Signals, lines: list[str]) -> Iterator[Supervisor]:
    supervisor = Supervisor(signals, lines.append)
    yield supervisor
    supervisor.stop()


def test_a_dead_process_is_started_again_and_its_children_go(
    tmp_path: Path, supervisor: Supervisor, lines: list[str]
) -> None:
    supervisor.start(program(tmp_path, "sleep 60 & sleep 60"))
    pid = supervisor.pids["web"]
    main = psutil.Process(pid)
    while len(children := main.children()) < 2:
        time.sleep(0.01)
    main.kill()
    supervisor.wait_until(lambda: bool(lines), what="no restart was said", seconds=5)
    assert lines == [f"web ended (signal 9); started again, pid {supervisor.pids['web']}"]
    assert supervisor.pids["web"] != pid
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_a_process_that_keeps_dying_ends_the_start_with_its_last_words(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    (tmp_path / "web.log").write_text("of an earlier day\n")
    started = time.monotonic()
    supervisor.start(program(tmp_path, "echo no such module; exit 3"))
    with pytest.raises(TrialError) as caught:
        supervisor.wait_until(lambda: False, what="it was not ready", seconds=10)
    head, last_words = str(caught.value).splitlines()
    assert head == f"web does not stay up (exit code 3). The end of {tmp_path / 'web.log'}:"
    assert last_words == "no such module"
    assert time.monotonic() - started > 0.2 + 0.4  # it pauses longer each time


def test_a_process_that_lives_but_never_answers_runs_out_of_time(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.start(program(tmp_path, "sleep 60"))
    with pytest.raises(TrialError, match="it did not answer within 0 s"):
        supervisor.wait_until(lambda: False, what="it did not answer", seconds=0.1)


def test_a_program_that_is_not_there_is_told(tmp_path: Path, supervisor: Supervisor) -> None:
    with pytest.raises(TrialError, match="web cannot be started"):
        supervisor.start(replace(program(tmp_path, ""), argv=[str(tmp_path / "nothing")]))


def test_the_relay_ends_before_its_servers(tmp_path: Path, signals: Signals) -> None:
    supervisor = Supervisor(signals, print)
    for name, wave in (("server", 0), ("web", 1)):
        script = f"trap 'sleep 0.1; echo {name} >> {tmp_path}/order; exit' TERM; echo up; "
        supervisor.start(program(tmp_path, script + "while :; do sleep 0.01; done", name, wave))
    for name in ("server", "web"):
        while (tmp_path / f"{name}.log").read_text() != "up\n":
            time.sleep(0.01)
    supervisor.stop()
    assert (tmp_path / "order").read_text() == "web\nserver\n"
    assert supervisor.pids == {}


def test_a_second_stop_hurries_a_process_that_will_not_end(
    tmp_path: Path, signals: Signals
) -> None:
    supervisor = Supervisor(signals, print)
    supervisor.start(program(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.01; done"))
    pid = supervisor.pids["web"]
    while (tmp_path / "web.log").read_text() != "up\n":
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    supervisor.stop()
    assert 0.2 < time.monotonic() - started < 5
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_stop_signal_ends_a_wait(signals: Signals, number: signal.Signals) -> None:
    signals.wait(0)
    os.kill(os.getpid(), number)
    with pytest.raises(KeyboardInterrupt):
        signals.wait(10)


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.wait(0)
    finally:
        signal.signal(signal.SIGHUP, former)


def step(tmp_path: Path, script: str, stdin: str = "") -> Step:
    return Step(
        argv=["sh", "-c", script],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        log=tmp_path / "setup.log",
        stdin=stdin,
    )


def test_a_step_gives_its_output_and_logs_its_errors_alone(
    tmp_path: Path, signals: Signals
) -> None:
    code, output, errors = step(tmp_path, "cat; echo wrong >&2; exit 4", "secret").run(signals)
    assert (code, output, errors) == (4, "secret", "wrong")
    assert (tmp_path / "setup.log").read_text() == "wrong\n"
    with pytest.raises(TrialError, match=r"It failed \(exit code 4\)(.|\n)*wrong"):
        step(tmp_path, "echo wrong >&2; exit 4").must(signals, what="It")


def test_a_stop_ends_a_step_and_what_it_started(tmp_path: Path, signals: Signals) -> None:
    long = step(tmp_path, "sleep 60 & echo $! > child; kill -INT $PPID; sleep 60")
    with pytest.raises(KeyboardInterrupt):
        long.run(signals)
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- PostgreSQL's account and leftovers ------------------------------------------------------

STRANGER = Account(uid=12345, gid=12345)


def test_only_the_right_to_pass_through_is_given_and_said(tmp_path: Path, lines: list[str]) -> None:
    closed = tmp_path / "closed"
    (closed / "open").mkdir(parents=True)
    closed.chmod(0o700)
    (closed / "open").chmod(0o755)
    accounts.open_path_to([closed / "open" / "data"], STRANGER, lines.append)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o701
    assert stat.S_IMODE((closed / "open").stat().st_mode) == 0o755
    assert lines.pop().startswith("For PostgreSQL, other users may now pass through (o+x): ")
    accounts.open_path_to([closed / "open" / "data"], STRANGER, lines.append)
    assert lines == []


def test_a_package_closed_by_a_strict_umask_is_opened_for_reading(
    tmp_path: Path, lines: list[str]
) -> None:
    tree = tmp_path / "package"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "postgres").touch(0o700)
    (tree / "share.txt").touch(0o600)
    for directory in (tree, tree / "bin"):
        directory.chmod(0o700)
    accounts.open_tree(tree, STRANGER, lines.append)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in sorted([tree, *tree.rglob("*")])]
    assert modes == [0o705, 0o705, 0o705, 0o604]
    assert lines == [f"For PostgreSQL, other users may now read the package in {tree}"]


def cluster(tmp_path: Path, signals: Signals, lines: list[str]) -> postgres.Cluster:
    (tmp_path / "postgres").mkdir()
    return postgres.Cluster(DataDirectory(tmp_path), None, Path(), signals, lines.append)


def test_a_pid_file_that_names_another_process_is_forgotten(
    tmp_path: Path, signals: Signals, lines: list[str]
) -> None:
    data = cluster(tmp_path, signals, lines)
    pid_file = tmp_path / "postgres" / "postmaster.pid"
    for text in (f"{os.getpid()}\n", "4194305\n", "garbage\n"):
        pid_file.write_text(text)
        data.end_leftover()
        assert not pid_file.exists()
    assert lines == []


def test_a_leftover_postmaster_is_stopped(
    tmp_path: Path, signals: Signals, lines: list[str]
) -> None:
    data = cluster(tmp_path, signals, lines)
    stand_in = "trap 'echo fast > stopped; exit' INT; touch up; while :; do sleep 0.01; done"
    home = tmp_path / "postgres"
    with subprocess.Popen(["sh", "-c", stand_in], cwd=home) as leftover:
        (home / "postmaster.pid").write_text(f"{leftover.pid}\n")
        while not (home / "up").exists():
            time.sleep(0.01)
        data.end_leftover()
    assert (home / "stopped").read_text() == "fast\n"
    assert lines == [
        f"Stopping the PostgreSQL that a killed trial left behind (pid {leftover.pid})."
    ]


def test_readiness_is_believed_of_our_own_postmaster_alone(
    tmp_path: Path, signals: Signals, lines: list[str]
) -> None:
    data = cluster(tmp_path, signals, lines)
    (tmp_path / "postgres" / "postmaster.pid").write_text(
        "77\n/data\n1700000000\n5432\n\n127.0.0.1\n  1 2\nready   \n"
    )
    assert data.is_ready(77)
    assert not data.is_ready(78)
    assert not data.is_ready(None)


# --- What is told ----------------------------------------------------------------------------


def test_the_page_shows_what_a_person_needs_next(tmp_path: Path) -> None:
    url = "http://127.0.0.1:8000"
    facts = Facts(url, f"{url}/admin/", "admin", None, "rlp1.a.b", "postgresql://", "redis://",
                  {}, {"web": 1})  # fmt: skip
    page = facts.as_page(data_dir=tmp_path, is_default=False, color=False)
    for text in (url, f"{url}/admin/", "rlp1.a.b", "manage.py demo", f". {tmp_path / 'env'}",
                 str(tmp_path / "logs"), "Ctrl-C", "see the hint above"):  # fmt: skip
        assert text in page
    assert "\x1b" not in page
    assert "set -a" not in facts.as_page(data_dir=tmp_path, is_default=True, color=True)
