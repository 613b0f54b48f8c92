"""Statements that the ORM cannot say live in `.sql` files beside their service."""

from functools import cache
from pathlib import Path
from typing import Any

from django.db import connection


@cache
def load(path: Path) -> str:
    """The text of one file. Parameters are named: `%(now)s`."""
    return path.read_text("utf-8")


def rows(statement: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a statement and return its rows as dictionaries by column name."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def execute(statement: str, parameters: dict[str, Any]) -> int:
    """Run a statement and return how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)
