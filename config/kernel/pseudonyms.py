"""Names for devices in logs: keyed, and another one each day (DESIGN rule 4.9)."""

import hmac
from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

from config.kernel import keys


def of_device(device_id: UUID, *, day: str | None = None) -> str:
    """Twelve hex digits that name this device in today's lines and nowhere else."""
    today = day or datetime.now(UTC).strftime("%Y-%m-%d")
    secret = keys.current(keys.Purpose.PSEUDONYM).secret
    return hmac.new(secret, today.encode() + device_id.bytes, sha256).hexdigest()[:12]


def lasting(kind: str, value: bytes) -> str:
    """A keyed name that stays the same, for the audit log: found again by who knows the value."""
    secret = keys.current(keys.Purpose.PSEUDONYM).secret
    return hmac.new(secret, kind.encode() + b"\0" + value, sha256).hexdigest()[:16]
