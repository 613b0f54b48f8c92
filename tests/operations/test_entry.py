"""`manage.py` itself: what it lists, what it says of nonsense, and whose settings it takes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from config.trial.envfile import write_env_file
from tests.conftest import PROJECT, test_database_url


def manage(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """`manage.py` with the settings of this test run; an empty one is taken away."""
    environment = {**os.environ, "DATABASE_URL": test_database_url(), **settings}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env={name: value for name, value in environment.items() if value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",)])
def test_our_commands_are_listed_and_what_changes_things_behind_the_log_is_not(
    arguments: tuple[str, ...],
) -> None:
    done = manage(*arguments, DATABASE_URL="", COLUMNS="80")
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.splitlines() if line[2:3].strip()}
    assert {"up", "demo", "limits", "admin", "work"} <= listed
    assert not {"flush", "runserver", "createsuperuser", "changepassword"} & listed
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(("name", "hint"), [("swep", " Did you mean sweep?"), ("xyzzy", "")])
def test_a_command_that_is_not_there_is_one_line_and_exit_code_2(name: str, hint: str) -> None:
    done = manage(name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"Error: There is no command {name}.{hint} `manage.py help` lists them.\n"
    )


def test_the_data_directory_that_is_named_is_the_one_that_is_read(tmp_path: Path) -> None:
    write_env_file(tmp_path / "env", {"DATABASE_URL": test_database_url(), "LOG_LEVEL": "LOUD"})
    done = manage("sweep", DATABASE_URL="", LOG_LEVEL="", RELAY_DATA_DIR=str(tmp_path))
    assert done.stderr.startswith("LOG_LEVEL='LOUD' is not possible")
    write_env_file(tmp_path / "env", {"DATABASE_URL": test_database_url()})
    assert manage("sweep", DATABASE_URL="", RELAY_DATA_DIR=str(tmp_path)).returncode == 0


def test_a_data_directory_without_a_trial_is_refused(tmp_path: Path) -> None:
    done = manage("provisioner", "list", DATABASE_URL="", RELAY_DATA_DIR=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == (
        f"Error: RELAY_DATA_DIR={str(tmp_path)!r} is not possible: "
        "no `manage.py up` left its env there.\n"
    )


def test_ctrl_c_while_it_is_still_starting_is_an_end_without_a_word(tmp_path: Path) -> None:
    # A FIFO for a setting's file: the start waits in the middle until somebody writes into it.
    fifo = tmp_path / "level"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--data-dir", str(tmp_path / "data")],
        cwd=PROJECT,
        env={**os.environ, "LOG_LEVEL_FILE": str(fifo)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while _waits_in(process.pid) != "fifo" and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


def _waits_in(pid: int) -> str:
    """`fifo` once the process is in the kernel, waiting for the other end of one."""
    try:
        state = Path(f"/proc/{pid}/syscall").read_text()
    except OSError:
        return ""
    number, *arguments = state.split()
    opens_at = number == "257" and len(arguments) > 1
    return "fifo" if opens_at else ""
