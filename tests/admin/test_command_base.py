"""What config.commands promises to every command."""

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
import redis
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.management.base import CommandError

from config.commands import CommandGroup, Options, RelayCommand, Unavailable, operator, table
from config.kernel.problems import NotFound
from tests.conftest import PROJECT, test_database_url


@dataclass(frozen=True)
class Thing:
    id: UUID
    made: datetime


class Sketch(RelayCommand):
    """A command that does what the test says."""

    refusals = (LookupError,)

    def __init__(self, act: Callable[["Sketch"], object]) -> None:
        super().__init__()
        self.act = act

    def handle(self, *args: Any, **options: Any) -> None:
        self.act(self)


class Group(CommandGroup):
    """A command with two actions."""

    def add_actions(self) -> None:
        self.action("one", self.one, help="One.").add_argument("--size", type=int)
        self.action("two", self.two, help="Two.")

    def one(self, options: Options) -> None:
        self.print(f"one {options['size']}", {"one": options["size"]})

    def two(self, options: Options) -> None:
        self.print("two", {"two": None})


def run(command: RelayCommand, *arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command(command, *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def refused(error: Exception) -> CommandError:
    def raises(_: Sketch) -> None:
        raise error

    with pytest.raises(CommandError) as refusal:
        run(Sketch(raises))
    return refusal.value


def test_results_are_text_for_people_and_json_for_scripts() -> None:
    moment = datetime(2026, 12, 1, 4, 5, 6, 7, tzinfo=UTC)
    thing = Thing(UUID(int=1), moment)
    out, err = run(Sketch(lambda command: command.print("a thing", thing)))
    assert (out, err) == ("a thing\n", "")
    out, err = run(Sketch(lambda command: command.print("a thing", thing)), "--json")
    assert json.loads(out) == {
        "id": "00000000-0000-0000-0000-000000000001",
        "made": "2026-12-01T04:05:06.000007Z",
    }
    assert out.count("\n") == 1


def test_a_table_takes_every_cell_literally() -> None:
    cells = ("[bold]name[/bold]", ":smile:", None, 3)
    made = table(("Name", "[red]", "Nothing", "Number"), [cells], title="[i]title")
    out, _ = run(Sketch(lambda command: command.print(made, {})))
    for text in ("[bold]name[/bold]", ":smile:", "[red]", "[i]title"):
        assert text in out
    assert "None" not in out
    assert "\x1b" not in out


def in_a_terminal(columns: int, *renderables: Any) -> list[str]:
    """The lines that a terminal of so many columns gets."""
    out = StringIO()
    out.isatty = lambda: True  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("LINES", "25")
        patch.setenv("TERM", "dumb")
        for each in renderables:
            call_command(Sketch(lambda command, each=each: command.print(each, {})), stdout=out)
    return out.getvalue().splitlines()


MOMENT = "2026-12-01 16:12 UTC"
WIDE = table(
    ("Name", "Provisioner", "State", "Created", "Changed"),
    [("identity", UUID(int=7), "revoked", MOMENT, MOMENT)],
)


@pytest.mark.parametrize("columns", [30, 60, 80, 200])
def test_an_id_is_never_broken_over_lines_and_nothing_is_cut(columns: int) -> None:
    lines = in_a_terminal(columns, WIDE)
    assert any("00000000-0000-0000-0000-000000000007" in line for line in lines)
    assert "".join(lines).count("UTC") == 2 or columns < 60


def test_a_table_with_an_id_and_two_moments_breaks_only_between_words_at_80_columns() -> None:
    _, _, *rows = (line.split() for line in in_a_terminal(80, WIDE))
    identity = "00000000-0000-0000-0000-000000000007"
    assert rows == [
        ["identity", identity, "revoked", "2026-12-01", "2026-12-01"],
        ["16:12", "UTC", "16:12", "UTC"],
    ]


def test_no_row_is_broken_where_a_program_reads_and_none_ends_in_white_space() -> None:
    cells = ("x" * 300, UUID(int=7), "2026-12-01 16:12 UTC")
    made = table(("A", "B", "C"), [cells, ("", "", "")])
    out, _ = run(Sketch(lambda command: command.print(made, {})))
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    assert f"{cells[0]}  {cells[1]}  {cells[2]}" in out.splitlines()


def test_a_title_and_a_note_are_as_wide_as_they_need() -> None:
    title, note = "A long title that says what is below", "A note that is longer than the table."
    lines = in_a_terminal(80, table(("A",), [("1",)], title=title, note=note))
    assert lines[0].strip() == title
    assert lines[-1].strip() == note


def test_a_result_that_cannot_be_written_is_one_line() -> None:
    command = [sys.executable, "manage.py", "limits", "show"]
    for more in ([], ["--json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*command, *more],
                cwd=PROJECT,
                env={**os.environ, "DATABASE_URL": test_database_url(), "PYTHONUNBUFFERED": ""},
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode == 1
        assert done.stderr == "Error: The result cannot be written: No space left on device.\n"


def test_notes_are_for_people_and_leave_stdout_alone() -> None:
    assert run(Sketch(lambda command: command.note("careful"))) == ("", "careful\n")
    assert run(Sketch(lambda command: command.note("careful")), "--json") == ("", "")


def test_progress_leaves_no_trace_where_nobody_watches() -> None:
    seen: list[int] = []
    work = Sketch(lambda command: seen.extend(command.track([1, 2, 3], total=3, text="Working")))
    assert run(work) == ("", "")
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (LookupError("no such\n  thing"), "no such thing"),
        (NotFound("There is no device with this id."), "There is no device with this id."),
        (ValidationError(["one", "two"]), "one; two"),
    ],
)
def test_what_an_operator_can_act_on_is_one_line(error: Exception, text: str) -> None:
    refusal = refused(error)
    assert (str(refusal), refusal.returncode) == (text, 1)


@pytest.mark.parametrize("error", [redis.ConnectionError("refused"), redis.TimeoutError("slow")])
def test_redis_that_is_away_is_one_line(error: Exception) -> None:
    refusal = refused(error)
    assert isinstance(refusal, Unavailable)
    assert str(refusal) == f"Redis does not answer: {error}"


def test_a_bug_keeps_its_traceback() -> None:
    def raises(_: Sketch) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Sketch(raises))


def test_a_group_runs_the_action_that_was_named_and_json_stands_on_either_side() -> None:
    assert run(Group(), "one", "--size", "3") == ("one 3\n", "")
    assert run(Group(), "two") == ("two\n", "")
    assert run(Group(), "one", "--size", "3", "--json") == ('{"one": 3}\n', "")
    assert run(Group(), "--json", "two") == ('{"two": null}\n', "")


@pytest.mark.parametrize("arguments", [(), ("three",), ("two", "--size", "3")])
def test_a_group_refuses_what_it_does_not_know(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        run(Group(), *arguments)


def test_the_operator_is_the_process_owner_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    assert operator() == f"command:{pwd.getpwuid(os.getuid()).pw_name}"
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)
    assert operator() == "command:4000000001"
