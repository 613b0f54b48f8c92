"""What every command of the relay has in common, so that operators learn it once.

    class Command(RelayCommand):
        help = "Say how many devices there are."

        def handle(self, *args: Any, **options: Any) -> None:
            count = device_count()
            self.print(f"{count} devices", {"devices": count})

Results go to stdout: for people as text or a table, with `--json` as one JSON value a line.
Everything else goes to stderr. Exit codes: 0 done, 1 refused or not possible just now (one
line says why), 2 the command line is wrong. A bug is a traceback.
"""

import argparse
import json
import os
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import IO, Any, ClassVar, TypeVar, cast
from uuid import UUID

import psycopg
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError, InterfaceError, OperationalError
from rich import box
from rich.console import Console, RenderableType
from rich.progress import track
from rich.table import Table

from config.kernel import clock
from config.kernel.problems import Problem

T = TypeVar("T")
Options = Mapping[str, Any]

_WIDTH_WITHOUT_TERMINAL = 160
_NOT_MIGRATED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)


class Refused(CommandError):  # noqa: N818 - Django prints the class's name before its text
    """The relay says no, in words for the operator: exit code 1."""


class Unavailable(CommandError):  # noqa: N818
    """Something that the command needs does not answer: exit code 1."""


class RelayCommand(BaseCommand):
    """A Django command with `--json`, tables, and errors that are one line.

    `refusals` names the exceptions of the services behind it whose text is meant for the
    operator. Problems of the API's catalogue, validation errors and a database that is away
    or not migrated are understood everywhere.
    """

    refusals: ClassVar[tuple[type[Exception], ...]] = ()
    # Settings are checked as they are read; what else can be wrong is doctor's to find.
    requires_system_checks: list[str] = []
    suppressed_base_arguments = {
        "--version", "--verbosity", "--settings", "--pythonpath", "--force-color", "--traceback",
    }  # fmt: skip
    _options: Options = {}

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Django's parser, and `--json` on every command."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        _add_json(parser, default=False)
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command; what an operator can do something about becomes one line."""
        self._options = options
        try:
            return super().execute(*args, **options)
        except Exception as error:
            said = _in_words(error, self.refusals)
            if said is None:
                raise
            raise said from error

    def print(self, human: RenderableType, json_value: Any) -> None:
        """One result on stdout: `human` (text or a rich renderable), or one line of JSON.

        `json_value` may hold datetimes, UUIDs and dataclasses.
        """
        if self._options.get("json"):
            self.stdout.write(json.dumps(json_value, default=_plain))
        elif isinstance(human, str):
            self.stdout.write(human)
        else:
            self._console(self.stdout).print(human)

    def note(self, text: str) -> None:
        """Something for a person to know beside the result: a line on stderr, not with `--json`."""
        if not self._options.get("json"):
            self.stderr.write(text, lambda line: line)

    def track(self, items: Iterable[T], *, total: int, text: str) -> Iterable[T]:
        """`items`, with a progress bar on stderr when that is a terminal."""
        console = self._console(self.stderr)
        return track(
            items, text, total, console=console, transient=True, disable=not console.is_terminal
        )

    def _console(self, stream: OutputWrapper) -> Console:
        """A console that takes every text literally: names may hold brackets and colons."""
        on_terminal = stream.isatty()
        return Console(
            file=cast(IO[str], stream),
            force_terminal=on_terminal,
            no_color=True if self._options.get("no_color") else None,
            width=None if on_terminal else _WIDTH_WITHOUT_TERMINAL,
            markup=False,
            highlight=False,
            emoji=False,
        )


class CommandGroup(RelayCommand):
    """A command with actions, such as `limits show` and `limits set`.

    def add_actions(self) -> None:
        self.action("show", self.show, help="Print the limits in force.")
        parser = self.action("set", self.set, help="Write a new version.")
        parser.add_argument("--reason", required=True)
    """

    def add_actions(self) -> None:
        """Declare the actions, each by one call of `action`."""
        raise NotImplementedError

    def action(
        self, name: str, run: Callable[[Options], None], *, help: str, more: str = ""
    ) -> CommandParser:
        """One action; returns its parser. `more` follows the help on the action's own page."""
        parser = self._actions.add_parser(name, help=help, description=f"{help} {more}".strip())
        # Leaves alone what the group's own parser found: `limits --json show` works too.
        _add_json(parser, default=argparse.SUPPRESS)
        parser.set_defaults(run_action=run)
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        """Actions in place of arguments."""
        self._actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
        self.add_actions()

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the chosen action."""
        options["run_action"](options)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    note: str | None = None,
    numbers: Sequence[str] = (),
) -> Table:
    """A table for `print`: no value is cut, `numbers` names the columns set to the right."""
    made = Table(
        title=title,
        caption=note,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        caption_style="dim",
        header_style="bold",
        pad_edge=False,
    )
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
    return made


def in_minutes(moment: datetime | None) -> str:
    """A moment for a table, in UTC; nothing for one that has not come."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def counted(number: int, thing: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def at_least_one(text: str) -> int:
    """The argparse type of a count that may not be nothing."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not possible: it must be at least 1")
    return number


def operator() -> str:
    """Who runs this command, for the audit log: `command:` and the system user.

    By the process's user id: LOGNAME and USER are anyone's to set. A container may run under
    an id that has no name.
    """
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return f"command:{name}"[:150]


def _add_json(parser: CommandParser, *, default: bool | str) -> None:
    parser.add_argument(
        "--json", action="store_true", default=default, help="print JSON, one value a line"
    )


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return clock.rfc3339(value)
    if isinstance(value, UUID):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _in_words(error: Exception, refusals: tuple[type[Exception], ...]) -> CommandError | None:
    """What to tell the operator; None for a bug, which keeps its traceback."""
    if isinstance(error, Problem):
        return Refused(_one_line(error.detail))
    if isinstance(error, ValidationError):
        return Refused(_one_line("; ".join(error.messages)))
    if isinstance(error, refusals):
        return Refused(_one_line(error))
    if isinstance(error, DatabaseError | InterfaceError):
        return _database_in_words(error)
    return _redis_in_words(error)


def _database_in_words(error: DatabaseError | InterfaceError) -> CommandError | None:
    cause = error.__cause__
    if isinstance(cause, _NOT_MIGRATED):
        return Unavailable("The database is not migrated: run `manage.py migrate` first.")
    if isinstance(cause, psycopg.errors.LockNotAvailable):
        return Unavailable("Another process holds what this command has to change; try again.")
    if isinstance(cause, psycopg.errors.ReadOnlySqlTransaction):
        return Unavailable("PostgreSQL takes no changes just now: it is read-only.")
    if isinstance(error, OperationalError | InterfaceError):
        return Unavailable(f"PostgreSQL does not answer: {_one_line(error)}")
    return None


def _redis_in_words(error: Exception) -> CommandError | None:
    import redis  # only those who use it have paid for this import before

    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return Unavailable(f"Redis does not answer: {_one_line(error)}")
    return None


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
