"""Looks at every statement that the relay's own code sends in this process (DESIGN rule 4.3).

A statement that locks or changes a hot table must name one shard by equality, or insert one
value for it, in each of its parts that does so; and must ask no clock and no other volatile
function. So it runs unchanged on tables distributed by `shard`.

To hold the whole suite to it, tests/conftest.py says

    from tests.rules.statement_guard import _statements_are_guarded, statement_guard

The first is a session fixture with autouse that installs the guard on every connection of
every thread; the second one, with autouse too, fails the test in which a statement broke the
rule. SQL that the tests themselves send is not looked at: what counts is the innermost frame
of the project on the stack.
"""

import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.db.backends.signals import connection_created

HOT = (
    "quotas_queueusage",
    "relay_envelope",
    "relay_body",
    "idempotency_record",
    "outbox_event",
    "outbox_batch",
)
_PROJECT = str(Path(__file__).resolve().parents[2])
#: A virtual environment may lie inside the project.
_LIBRARIES = ("/.venv/", "/site-packages/")
_NOT_THE_RELAY = (f"{_PROJECT}/tests/", "/migrations/")

_TABLE = rf"\"?\b(?P<table>{'|'.join(HOT)})\b\"?"
_INSERT = re.compile(rf"\bINSERT\s+INTO\s+{_TABLE}(?:\s+AS\s+\w+)?\s*\((?P<columns>[^()]*)\)", re.I)
_CHANGE = re.compile(rf"\b(?:UPDATE\s+(?:ONLY\s+)?|DELETE\s+FROM\s+(?:ONLY\s+)?){_TABLE}", re.I)
_LOCKING = re.compile(r"\bFOR\s+(?:NO\s+KEY\s+UPDATE|UPDATE|SHARE|KEY\s+SHARE)\b", re.I)
_READS = re.compile(rf"\b(?:FROM|JOIN)\s+{_TABLE}", re.I)
_SHARD = re.compile(
    r"(?<!\w)(?:\"?\w+\"?\.)?\"?shard\"?\s*=\s*(?P<value>%\(\w+\)s|\d+)(?:::\w+)?", re.I
)
_CLOCKS = re.compile(
    r"\b(?:now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|relay_now|"
    r"random|gen_random_uuid|uuidv4|uuidv7|nextval|currval|lastval|setval|txid_current|"
    r"pg_current_xact_id)\s*\(|"
    r"\b(?:current_timestamp|current_date|current_time|localtime|localtimestamp|interval)\b",
    re.I,
)
_QUERY = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|VALUES)\b", re.I)


@dataclass(frozen=True)
class Violation:
    """A statement of the relay that breaks the rule."""

    why: str
    statement: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.why}\n    at {self.where}\n    {' '.join(self.statement.split())[:400]}"


# --- What a statement says ---------------------------------------------------------------------


def violations_of(statement: str, parameters: Any = None) -> list[str]:
    """Why this statement breaks the rule; empty for one that does not, or need not care."""
    text, values = _named(_bare(statement), parameters)
    parts = [part for part in _queries(text) if _touches_hot(part)]
    if not parts:
        return []
    found, shards = [], set()
    for part in parts:
        named = _shards_of(part, values)
        if not named:
            found.append("names no shard by equality")
        shards |= named
    if len(shards) > 1:
        found.append(f"names more than one shard: {sorted(shards, key=str)}")
    clock = _CLOCKS.search(text)
    if clock is not None:
        found.append(f"asks {clock.group().strip(' (')} in a statement that locks or changes")
    return found


@lru_cache(maxsize=4_000)
def is_watched(statement: str) -> bool:
    """Whether the rule says anything about this statement."""
    return any(_touches_hot(part) for part in _queries(_bare(statement)))


def _bare(statement: str) -> str:
    """Without comments, and with every text constant emptied."""
    without_comments = re.sub(r"--[^\n]*|/\*.*?\*/", " ", statement, flags=re.DOTALL)
    return re.sub(r"'(?:[^']|'')*'", "''", without_comments)


def _named(text: str, parameters: Any) -> tuple[str, dict[str, Any]]:
    """Every placeholder under a name, and the values by name."""
    if isinstance(parameters, dict):
        return text, dict(parameters)
    values = {f"_{index}": value for index, value in enumerate(parameters or ())}
    counter = iter(range(len(values) + text.count("%s")))
    return re.sub(r"%s", lambda _: f"%(_{next(counter)})s", text), values


def _queries(text: str) -> list[str]:
    """The statement and each subquery in it, each without those inside it."""
    found: list[str] = []

    def read(start: int) -> tuple[str, int]:
        own, at = "", start
        while at < len(text):
            character = text[at]
            if character == ")":
                return own, at
            placeholder = re.compile(r"%\(\w+\)s").match(text, at)
            if placeholder:
                own, at = own + placeholder.group(), placeholder.end()
            elif character == "(":
                inner, at = read(at + 1)
                if _QUERY.match(inner):
                    found.append(inner)
                    own += "(…)"
                else:
                    own += f"({inner})"
                at += 1
            else:
                own, at = own + character, at + 1
        return own, at

    whole, _ = read(0)
    return [*found, whole]


def _touches_hot(part: str) -> bool:
    changes = _INSERT.search(part) or _CHANGE.search(part)
    locks = _LOCKING.search(part) and _READS.search(part)
    return bool(changes or locks)


def _shards_of(part: str, values: dict[str, Any]) -> set[Any]:
    insert = _INSERT.search(part)
    if insert is not None:
        return _inserted_shards(part, insert, values)
    where = re.search(r"\bWHERE\b(.*)", part, re.I | re.DOTALL)
    if where is None or re.search(r"\bOR\b|\bNOT\s*\(", where.group(1), re.I):
        return set()
    return {_value(match.group("value"), values) for match in _SHARD.finditer(where.group(1))}


def _inserted_shards(part: str, insert: re.Match[str], values: dict[str, Any]) -> set[Any]:
    columns = [name.strip(' "\n') for name in insert.group("columns").split(",")]
    if "shard" not in columns:
        return set()
    index, rest = columns.index("shard"), part[insert.end() :]
    found: set[Any] = set()
    rows = re.match(r"\s*VALUES\s*(.*)", rest, re.I | re.DOTALL)
    unnest = re.match(r"\s*SELECT\s*\*\s*FROM\s+UNNEST\s*(.*)", rest, re.I | re.DOTALL)
    if rows is not None:
        items = [_items(row)[index] for row in _groups(rows.group(1)) if len(_items(row)) > index]
    elif unnest is not None:
        items = [_items(_groups(unnest.group(1))[0])[index]]
    else:
        select = re.match(r"\s*SELECT\s+(.*?)\bFROM\b", rest, re.I | re.DOTALL)
        items = [_items(select.group(1))[index]] if select else []
    for item in items:
        name = re.search(r"%\((\w+)\)s|\b\d+\b", item)
        if name is None:
            return set()
        found |= _each(_value(name.group(), values))
    return found


def _groups(text: str) -> list[str]:
    """The top-level groups in parentheses, up to ON CONFLICT or RETURNING."""
    found, depth, start, at = [], 0, 0, 0
    while at < len(text):
        placeholder = re.compile(r"%\(\w+\)s").match(text, at)
        if placeholder:
            at = placeholder.end()
            continue
        if depth == 0 and re.compile(r"\b(?:ON\s+CONFLICT|RETURNING)\b", re.I).match(text, at):
            break
        if text[at] == "(":
            start = at + 1 if depth == 0 else start
            depth += 1
        elif text[at] == ")":
            depth -= 1
            if depth == 0:
                found.append(text[start:at])
        at += 1
    return found


def _items(text: str) -> list[str]:
    """What commas separate at the top level."""
    found, depth, current = [], 0, ""
    for character in text:
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            found.append(current)
            current = ""
        else:
            current += character
    return [*found, current]


def _value(text: str, values: dict[str, Any]) -> Any:
    """A placeholder's value (its name when it is not known), or the number itself."""
    if text.isdigit():
        return int(text)
    name = text[2:-2]
    value = values.get(name, text)
    return tuple(value) if isinstance(value, list) else value


def _each(value: Any) -> set[Any]:
    return set(value) if isinstance(value, tuple) else {value}


# --- Watching ----------------------------------------------------------------------------------


@dataclass
class StatementGuard:
    """An execute wrapper on every connection; keeps what broke the rule."""

    violations: list[Violation] = field(default_factory=list)
    watched: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if any(table in sql for table in HOT) and is_watched(sql):
            where = _sender()
            if where is not None:
                self._look(sql, params, where)
        return execute(sql, params, many, context)

    def _look(self, sql: str, params: Any, where: str) -> None:
        found = [Violation(why, sql, where) for why in violations_of(sql, params)]
        with self._lock:
            self.watched += 1
            self.violations += found

    def take(self) -> list[Violation]:
        """What was found since the last call."""
        with self._lock:
            found, self.violations = self.violations, []
            return found

    def install(self) -> None:
        """On what is connected here, and on everything that will be."""
        connection_created.connect(self._on_connection, weak=False)
        for connection in connections.all(initialized_only=True):
            self._on_connection(connection=connection)

    def remove(self) -> None:
        """From here on nothing is watched."""
        connection_created.disconnect(self._on_connection)
        for connection in connections.all(initialized_only=True):
            if self in connection.execute_wrappers:
                connection.execute_wrappers.remove(self)

    def _on_connection(self, *, connection: Any, **_: Any) -> None:
        if self not in connection.execute_wrappers:
            connection.execute_wrappers.append(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


def _sender() -> str | None:
    """`file:line` of the relay's code that sent the statement; None when a test did."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        is_ours = name.startswith(_PROJECT) and not any(part in name for part in _LIBRARIES)
        if is_ours and name != __file__:
            if any(part in name for part in _NOT_THE_RELAY):
                return None
            return f"{name[len(_PROJECT) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


GUARD = StatementGuard()


@pytest.fixture(scope="session", autouse=True)
def _statements_are_guarded() -> Iterator[None]:
    """Every statement of the relay in this process is looked at."""
    GUARD.install()
    yield
    GUARD.remove()


@pytest.fixture(autouse=True)
def statement_guard(_statements_are_guarded: None) -> Iterator[StatementGuard]:
    """Fails the test in which a statement of the relay broke the rule."""
    GUARD.take()
    yield GUARD
    found = GUARD.take()
    assert not found, "\n" + "\n".join(str(violation) for violation in found)
