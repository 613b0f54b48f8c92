"""Whether a token is good (PROTOCOL sections 1 and 6).

A yes is believed for RELAY_BELIEVE_SECONDS, counted from before it was read; a no is never
kept. So a new or rotated credential works at once, and a revoked or replaced one stops within
5 s everywhere.
"""

import hmac
import threading
import time
from uuid import UUID

from django.conf import settings

from config.kernel import sql
from relay import tokens
from relay.callers import Caller, CallerKind

_MOST_ENTRIES = 50_000


class _Yes:
    """The credentials that were good a moment ago, by (kind, id)."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, UUID], tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    def has(self, token: tokens.PresentedToken) -> bool:
        held = self._held.get((token.kind, token.id))
        if held is None or held[1] <= time.monotonic():
            return False
        return hmac.compare_digest(held[0], token.sha256)

    def keep(self, token: tokens.PresentedToken, until: float) -> None:
        with self._lock:
            if len(self._held) >= _MOST_ENTRIES:
                self._held.clear()
            self._held[(token.kind, token.id)] = (token.sha256, until)

    def forget_all(self) -> None:
        with self._lock:
            self._held.clear()


YES = _Yes()


def authenticate(token: str) -> Caller | None:
    """The caller that this token belongs to, or None."""
    presented = tokens.parse(token)
    if presented is None:
        return None
    kind = CallerKind.DEVICE if presented.kind == tokens.DEVICE else CallerKind.PROVISIONER
    if not YES.has(presented):
        until = time.monotonic() + settings.RELAY_BELIEVE_SECONDS
        stored = _stored_digest(kind, presented.id)
        if stored is None or not hmac.compare_digest(stored, presented.sha256):
            return None
        YES.keep(presented, until)
    return Caller(kind, presented.id)


#: By hand, as every request of a caller that is not believed asks: building the same query
#: from a queryset costs several times what PostgreSQL takes for it.
_STORED = {
    CallerKind.DEVICE: (
        "SELECT token_sha256 FROM relay_device WHERE device_id = %(id)s AND state = 'active'"
    ),
    CallerKind.PROVISIONER: (
        "SELECT token_sha256 FROM relay_provisioner "
        "WHERE provisioner_id = %(id)s AND revoked_at IS NULL"
    ),
}


def _stored_digest(kind: CallerKind, identity: UUID) -> bytes | None:
    found = sql.rows(_STORED[kind], {"id": identity})
    return bytes(found[0]["token_sha256"]) if found else None
