"""Pulling a page of a device's own queue (PROTOCOL section 3). Deletes nothing."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from config.kernel import sql
from config.kernel.problems import CursorStale, StorageUnavailable
from config.kernel.shards import shard_of_device
from relay.cursors import Cursor, History, seal, unseal
from relay.expiry import PENDING_SQL

DEFAULT_LIMIT, MOST = 50, 100
#: A page ends at 4 MiB of ciphertext, but never before its first envelope.
PAGE_BYTES = 4 * 2**20

_SQL = Path(__file__).parent.parent / "sql"


@dataclass(frozen=True)
class PulledEnvelope:
    """One envelope of a page."""

    message_id: UUID
    protocol_version: int
    ciphertext: bytes = field(repr=False)
    size: int
    accepted_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class Page:
    """A page, the token to go on from, and whether there was more when it was read."""

    envelopes: list[PulledEnvelope]
    next_cursor: str = field(repr=False)
    has_more: bool


@dataclass(frozen=True)
class _Position:
    now: datetime
    history: History
    next_seq: int


def pull(*, device_id: UUID, limit: int = DEFAULT_LIMIT, cursor: str | None = None) -> Page:
    """The next envelopes behind `cursor`, or the oldest ones without it.

    Raises CursorInvalid and CursorStale. The token of the page stands at the last row that
    was returned, or where it stood before: never at "now", so that nothing is ever skipped.
    """
    position = _position(device_id)
    after = 0 if cursor is None else _resume(device_id, cursor, position)
    rows = _rows(device_id, after=after, limit=limit, now=position.now)
    last = rows[-1]["seq"] if rows else after
    token = Cursor(position.history, last, position.now)
    return Page(
        envelopes=[_envelope(row) for row in rows],
        next_cursor=seal(device_id=device_id, cursor=token),
        has_more=bool(rows) and rows[0]["found"] > len(rows),
    )


def _position(device_id: UUID) -> _Position:
    parameters = {"shard": shard_of_device(device_id), "device_id": device_id}
    found = sql.rows(sql.load(_SQL / "queue_position.sql"), parameters)
    if not found:
        raise StorageUnavailable  # no instance row: a database that is not migrated
    row = found[0]
    history = History(row["epoch"], row["timeline"])
    return _Position(row["now"].astimezone(UTC), history, row["next_seq"] or 1)


def _resume(device_id: UUID, token: str, position: _Position) -> int:
    cursor = unseal(device_id=device_id, token=token, now=position.now)
    if cursor.history != position.history or cursor.seq >= position.next_seq:
        raise CursorStale
    return cursor.seq


def _rows(device_id: UUID, *, after: int, limit: int, now: datetime) -> list[dict[str, Any]]:
    statement = sql.load(_SQL / "pull_page.sql").replace("{pending}", PENDING_SQL)
    parameters = {
        "shard": shard_of_device(device_id),
        "device_id": device_id,
        "after": after,
        "most": limit,
        "most_bytes": PAGE_BYTES,
        "now": now,
    }
    return sql.rows(statement, parameters)


def _envelope(row: dict[str, Any]) -> PulledEnvelope:
    return PulledEnvelope(
        message_id=row["message_id"],
        protocol_version=row["protocol_version"],
        ciphertext=bytes(row["ciphertext"]),
        size=row["size"],
        accepted_at=row["accepted_at"],
        expires_at=row["expires_at"],
    )
