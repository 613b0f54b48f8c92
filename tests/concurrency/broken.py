"""Deliberately broken builds, so that the oracle can be seen to fail them (FAULTS).

A build is made of wrappers around the statements of one thread's connection, and of triggers:
what it breaks is what reaches PostgreSQL, whichever function of the relay sends it.
`InsideClient` runs on it.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from uuid import UUID

from django.db import connection

from quotas.models import QueueUsage

T = TypeVar("T")
Execute = Callable[..., Any]

_LOCK = re.compile(r"\s+FOR (?:NO KEY )?UPDATE(?: OF [\w\"]+)?", re.IGNORECASE)
_USAGE_UPDATE = re.compile(r"\s*UPDATE\s+\"?quotas_queueusage\b", re.IGNORECASE)
_USAGE_READ = re.compile(r"\s*SELECT\b.*\bquotas_queueusage\b", re.IGNORECASE | re.DOTALL)

_PLACES_FROM_A_SEQUENCE = """
CREATE SEQUENCE tests_line;
CREATE FUNCTION tests_place() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'relay_envelope' THEN
        NEW.seq := nextval('tests_line');
    ELSE
        NEW.seq := currval('tests_line');
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER tests_place BEFORE INSERT ON relay_envelope
    FOR EACH ROW EXECUTE FUNCTION tests_place();
CREATE TRIGGER tests_place BEFORE INSERT ON relay_body
    FOR EACH ROW EXECUTE FUNCTION tests_place()
"""
_AS_IT_WAS = """
DROP TRIGGER tests_place ON relay_envelope;
DROP TRIGGER tests_place ON relay_body;
DROP FUNCTION tests_place();
DROP SEQUENCE tests_line
"""


@contextmanager
def places_from_a_sequence() -> Iterator[None]:
    """Whatever place the relay took, `seq` comes from a sequence."""
    _run_all(_PLACES_FROM_A_SEQUENCE)
    try:
        yield
    finally:
        _run_all(_AS_IT_WAS)


def _run_all(script: str) -> None:
    with connection.cursor() as cursor:
        for statement in re.split(r";\n(?=CREATE|DROP)", script):
            cursor.execute(statement)


def without_lock(execute: Execute, sql: str, params: Any, many: bool, context: Any) -> Any:
    """The usage row is read and not locked, and not written either."""
    if _USAGE_UPDATE.match(sql):
        return execute("SELECT 1 WHERE false", None, many, context)
    if _USAGE_READ.match(sql):
        sql = _LOCK.sub("", sql)
    return execute(sql, params, many, context)


class CountedInPython:
    """The totals are read without the lock, and what they should be now is written back."""

    def __init__(self, device_id: UUID, size: int, together: threading.Barrier) -> None:
        self._device_id = device_id
        self._size = size
        self._together = together
        self._read = (0, 0)

    def __call__(self, execute: Execute, sql: str, params: Any, many: bool, context: Any) -> Any:
        if _USAGE_UPDATE.match(sql):
            count, size = self._read
            write = (
                "UPDATE quotas_queueusage SET pending_count = %s, pending_bytes = %s, "
                "next_seq = next_seq + 1 WHERE device_id = %s"
            )
            return execute(write, [count + 1, size + self._size, self._device_id], many, context)
        if _USAGE_READ.match(sql) and _LOCK.search(sql):
            row = QueueUsage.objects.get(device_id=self._device_id)
            self._read = (row.pending_count, row.pending_bytes)
            self._together.wait(10)
            sql = _LOCK.sub("", sql)
        return execute(sql, params, many, context)


class Pause:
    """Stops one thread before its first statement of a kind, until it may go on."""

    def __init__(self, statement: str) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._statement = statement

    def __call__(self, execute: Execute, sql: str, params: Any, many: bool, context: Any) -> Any:
        if self._statement in sql:
            self.reached.set()
            assert self.go_on.wait(10)
        return execute(sql, params, many, context)


def under(wrappers: list[Execute], call: Callable[[], T]) -> Callable[[], T]:
    """The call, with these wrappers around every statement of its thread."""

    def run() -> T:
        with ExitStack() as stack:
            for wrapper in wrappers:
                stack.enter_context(connection.execute_wrapper(wrapper))
            return call()

    return run
