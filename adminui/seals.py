"""How an audit entry is sealed, and the canonical form that makes the seal checkable.

The hash of an entry is SHA-256 over

    "relay audit 1" and a zero byte, then each column in the order of `AuditRecord`,
    `previous_hash` last, `hash` itself left out.

A column that is NULL is one byte 0. Any other is one byte 1, the length of its encoding in
bytes as 8 bytes big-endian, and the encoding. So NULL and "" differ, and no two rows share
an encoding by moving text from one column to the next. The encodings:

    id            decimal digits
    at            RFC 3339 in UTC with six digits of microseconds and Z
    text          UTF-8, as it is
    before, after JSON with sorted keys and no white space, in UTF-8
    event_id      the canonical lower-case text of the UUID
    previous_hash its 32 bytes

PostgreSQL gives all of this back as it was put in: timestamps hold microseconds, text holds
every character but NUL, and jsonb keeps strings, whole numbers, true, false and null. What
jsonb would rewrite (fractions: 1e2 comes back as 100) or cannot hold (NUL, halves of
surrogate pairs) is refused by `plain_json` and `plain_text` before it is written.

A seal proves nothing to somebody who may rewrite the whole table: they can seal it anew. The
hash of the newest entry, noted outside the database from time to time, is what such a
rewriting has to match.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from json import dumps
from typing import Any
from uuid import UUID

from adminui.models import AuditEntry
from config.kernel import clock

#: What stands for the entry before the first.
BEFORE_THE_FIRST = bytes(32)
_FORMAT = b"relay audit 1\0"


@dataclass(frozen=True)
class AuditRecord:
    """One entry of the audit log, as a value."""

    id: int
    at: datetime
    actor: str
    source: str
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str
    event_id: UUID | None
    previous_hash: bytes
    hash: bytes


def record_of(row: AuditEntry) -> AuditRecord:
    """A row as a value."""
    return AuditRecord(
        id=row.id,
        at=row.at,
        actor=row.actor,
        source=row.source,
        action=row.action,
        target=row.target,
        before=row.before,
        after=row.after,
        reason=row.reason,
        event_id=row.event_id,
        previous_hash=bytes(row.previous_hash),
        hash=bytes(row.hash),
    )


def seal(row: AuditEntry) -> bytes:
    """The hash that belongs to what the row's other columns say."""
    columns = (
        str(row.id).encode(),
        clock.rfc3339(row.at).encode(),
        row.actor.encode(),
        row.source.encode(),
        row.action.encode(),
        row.target.encode(),
        _json(row.before),
        _json(row.after),
        row.reason.encode(),
        None if row.event_id is None else str(row.event_id).encode(),
        bytes(row.previous_hash),
    )
    return sha256(_FORMAT + b"".join(map(_framed, columns))).digest()


def plain_text(name: str, value: str, longest: int | None = None) -> str:
    """`value`, when PostgreSQL can hold it as it is. Raises ValueError."""
    if longest is not None and len(value) > longest:
        raise ValueError(f"{name} has {len(value)} characters, more than {longest}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{name} holds a character that cannot be stored")
    return value


def plain_json(name: str, value: Any) -> Any:
    """`value` in the JSON types that jsonb gives back unchanged. Raises ValueError."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return plain_text(name, value)
    if isinstance(value, list | tuple):
        return [plain_json(name, item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {plain_text(name, key): plain_json(name, item) for key, item in value.items()}
    raise ValueError(f"{name} holds a {type(value).__name__}, which jsonb might rewrite")


def _json(value: Any) -> bytes | None:
    if value is None:
        return None
    return dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _framed(column: bytes | None) -> bytes:
    if column is None:
        return b"\0"
    return b"\1" + len(column).to_bytes(8, "big") + column
