"""Statements of a test's own: faults planted in the database, and looks at it."""

from collections.abc import Sequence
from typing import Any

from django.db import connection


def run(statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Any statement; its rows, if it has any."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def set_usage(device_id: Any, **columns: int) -> None:
    """Columns of one usage row, as they were never meant to be."""
    assignments = ", ".join(f"{name} = {int(value)}" for name, value in columns.items())
    run(f"UPDATE quotas_queueusage SET {assignments} WHERE device_id = %s", [device_id])


def totals(device_id: Any) -> tuple[int, int]:
    """What a usage row counts: envelopes, and bytes."""
    [row] = run(
        "SELECT pending_count, pending_bytes FROM quotas_queueusage WHERE device_id = %s",
        [device_id],
    )
    return row[0], row[1]
