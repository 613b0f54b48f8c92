"""Cursors: where a walk through a queue stands (PROTOCOL section 3, DESIGN section 6).

A cursor is the last `seq` that was handed over, sealed with AES-GCM: it shows nothing, cannot
be changed, and opens for its own device only (the device id is authenticated with it). It
depends on no row, so nothing that happens to envelopes can break it. Epoch and timeline say
which history of the database it belongs to; after a restore an old one is stale.

    byte 0        format, 1
    byte 1        id of the key
    bytes 2 to 13    nonce
    the rest      AES-GCM of: epoch (16 bytes), timeline (4), seq (8), issued at (8, µs)
"""

import base64
import binascii
import secrets
import struct
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from config.kernel import clock, keys
from config.kernel.problems import CursorInvalid, CursorStale

LIFETIME = timedelta(days=30)
_FORMAT = 1
_NONCE_BYTES = 12
_CONTENT = struct.Struct(">16sIqQ")
_LONGEST = 200


@dataclass(frozen=True)
class History:
    """Which history of the database a position belongs to."""

    epoch: UUID
    timeline: int


@dataclass(frozen=True)
class Cursor:
    """A position in one device's queue: everything up to `seq` was handed over."""

    history: History
    seq: int
    issued_at: datetime


def seal(*, device_id: UUID, cursor: Cursor) -> str:
    """The token for a client."""
    key = keys.current(keys.Purpose.CURSOR)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    head = bytes([_FORMAT, key.id])
    content = _CONTENT.pack(
        cursor.history.epoch.bytes,
        cursor.history.timeline,
        cursor.seq,
        clock.to_microseconds(cursor.issued_at),
    )
    sealed = AESGCM(key.secret).encrypt(nonce, content, head + device_id.bytes)
    return base64.urlsafe_b64encode(head + nonce + sealed).rstrip(b"=").decode()


def unseal(*, device_id: UUID, token: str, now: datetime) -> Cursor:
    """The cursor that this server once gave to this device.

    Raises CursorInvalid for anything that does not authenticate, and CursorStale for a
    genuine one that is over 30 days old or was sealed under a key on the retired list.
    """
    raw = _decode(token)
    head, nonce, sealed = raw[:2], raw[2 : 2 + _NONCE_BYTES], raw[2 + _NONCE_BYTES :]
    ring = keys.ring(keys.Purpose.CURSOR)
    key = ring.honoured.get(head[1])
    if head[0] != _FORMAT or key is None:
        raise CursorInvalid
    try:
        content = AESGCM(key.secret).decrypt(nonce, sealed, head + device_id.bytes)
    except InvalidTag:
        raise CursorInvalid from None
    epoch, timeline, seq, issued_us = _CONTENT.unpack(content)
    issued_at = clock.from_microseconds(issued_us)
    if key.id in ring.retired or issued_at + LIFETIME <= now:
        raise CursorStale
    return Cursor(History(UUID(bytes=epoch), timeline), seq, issued_at)


def _decode(token: str) -> bytes:
    if not 0 < len(token) <= _LONGEST or not token.isascii():
        raise CursorInvalid
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise CursorInvalid from None
    canonical = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    if canonical != token or len(raw) != 2 + _NONCE_BYTES + _CONTENT.size + 16:
        raise CursorInvalid
    return raw
