"""The relay as a dictionary: what every answer must be, worked out without a database.

Time stands still between two steps and is moved by hand, so that even the times in an answer
are known beforehand. Written from PROTOCOL alone; nothing of the relay is imported.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

US = timedelta(microseconds=1)
DAY = timedelta(days=1)
#: A key is honoured for a day at least; the model says nothing of older ones.
KEY_LIFETIME = DAY
CURSOR_LIFETIME = timedelta(days=30)

QUOTA, UNKNOWN, CONFLICT = "RECIPIENT_QUOTA_EXCEEDED", "RECIPIENT_UNKNOWN", "MESSAGE_ID_CONFLICT"
STATUS = {
    QUOTA: 429,
    UNKNOWN: 404,
    CONFLICT: 409,
    "ENVELOPE_TOO_LARGE": 413,
    "PROTOCOL_VERSION_UNSUPPORTED": 422,
    "TTL_OUT_OF_RANGE": 422,
    "IDEMPOTENCY_KEY_REUSED": 422,
}


def text_of(moment: datetime) -> str:
    """RFC 3339 with microseconds and `Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class RefusedError(Exception):
    """A refusal, by its code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Entry:
    """One envelope as its sender gives it."""

    recipient: UUID
    message_id: UUID
    ciphertext: bytes
    version: int
    ttl: int | None


@dataclass
class Envelope:
    """One envelope in its queue, or its receipt."""

    entry: Entry
    place: int
    accepted_at: datetime
    expires_at: datetime
    lapses_at: datetime
    outcome: str = "pending"

    def times(self) -> dict[str, Any]:
        """What its sender is told."""
        return {
            "accepted_at": text_of(self.accepted_at),
            "expires_at": text_of(self.expires_at),
            "ttl_seconds": (self.expires_at - self.accepted_at) // timedelta(seconds=1),
        }


@dataclass
class Queue:
    """One device."""

    is_active: bool = True
    last: datetime | None = None
    places: int = 0
    envelopes: dict[UUID, Envelope] = field(default_factory=dict)

    def live(self, now: datetime) -> list[Envelope]:
        """What may be pulled, oldest first."""
        found = [
            each
            for each in self.envelopes.values()
            if each.outcome == "pending" and each.expires_at > now
        ]
        return sorted(found, key=lambda each: each.place)


@dataclass
class Rules:
    """The policies in force."""

    envelope_bytes: int = 2048
    pending_count: int = 10
    pending_bytes: int = 2**20
    versions: tuple[int, ...] = (1,)
    ttl_days: int = 7
    min_ttl: int = 60
    receipt_days: int = 8

    def check(self, entry: Entry) -> None:
        """Version, size, TTL: the first that is out of policy refuses."""
        if entry.version not in self.versions:
            raise RefusedError("PROTOCOL_VERSION_UNSUPPORTED")
        if len(entry.ciphertext) > self.envelope_bytes:
            raise RefusedError("ENVELOPE_TOO_LARGE")
        if entry.ttl is not None and entry.ttl < self.min_ttl:
            raise RefusedError("TTL_OUT_OF_RANGE")


@dataclass(frozen=True)
class Remembered:
    """What was answered to a key."""

    request: Any
    status: int
    document: Any
    at: datetime


class Model:
    """Every queue, every key, the policies and the time."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.rules = Rules()
        self.queues: dict[UUID, Queue] = {}
        self.keys: dict[Any, Remembered] = {}

    # --- Writes -------------------------------------------------------------------------------

    def once(self, scope: Any, request: Any, effect: Any) -> tuple[int, Any, bool]:
        """(status, document or code, replayed): a key's first answer, unless it was a refusal."""
        known = self.keys.get(scope)
        if known is not None:
            if known.request != request:
                return 422, "IDEMPOTENCY_KEY_REUSED", False
            return known.status, known.document, True
        try:
            status, document = effect()
        except RefusedError as refusal:
            return STATUS[refusal.code], refusal.code, False
        if status < 300 and scope is not None:
            self.keys[scope] = Remembered(request, status, document, self.now)
        return status, document, False

    def submit(self, entry: Entry) -> tuple[int, Any]:
        """One envelope: 201, 200 for a duplicate, or a refusal."""
        self.rules.check(entry)
        envelope, is_new = self._take(entry)
        return 201 if is_new else 200, {"message_id": str(entry.message_id), **envelope.times()}

    def batch(self, entries: tuple[Entry, ...]) -> tuple[int, Any]:
        """Each entry in its turn."""
        results = [self._result(entry) for entry in entries]
        stored = any(result["status"] != "rejected" for result in results)
        return 200 if stored else 422, {"results": results}

    def _result(self, entry: Entry) -> dict[str, Any]:
        result: dict[str, Any] = {
            "message_id": str(entry.message_id),
            "recipient_device_id": str(entry.recipient),
        }
        try:
            self.rules.check(entry)
            envelope, is_new = self._take(entry)
        except RefusedError as refusal:
            error = {"code": refusal.code, "retryable": refusal.code == QUOTA}
            return {**result, "status": "rejected", "error": error}
        return {**result, "status": "accepted" if is_new else "duplicate", **envelope.times()}

    def _take(self, entry: Entry) -> tuple[Envelope, bool]:
        queue = self.queues.get(entry.recipient)
        if queue is None or not queue.is_active:
            raise RefusedError(UNKNOWN)
        first = queue.envelopes.get(entry.message_id)
        if first is not None:
            if first.entry.ciphertext != entry.ciphertext:
                raise RefusedError(CONFLICT)
            return first, False
        live = queue.live(self.now)
        held = sum(len(each.entry.ciphertext) for each in live)
        if (
            len(live) + 1 > self.rules.pending_count
            or held + len(entry.ciphertext) > self.rules.pending_bytes
        ):
            raise RefusedError(QUOTA)
        queue.last = self.now if queue.last is None else max(self.now, queue.last + US)
        queue.places += 1
        longest = self.rules.ttl_days * 86_400
        ttl = longest if entry.ttl is None else min(entry.ttl, longest)
        expires_at = queue.last + timedelta(seconds=ttl)
        lapses_at = max(queue.last + self.rules.receipt_days * DAY, expires_at + DAY)
        envelope = Envelope(entry, queue.places, queue.last, expires_at, lapses_at)
        queue.envelopes[entry.message_id] = envelope
        return envelope, True

    def acknowledge(self, device: UUID, ids: tuple[UUID, ...]) -> tuple[int, Any]:
        """What became of each id of the caller's own queue."""
        results = []
        for message_id in ids:
            envelope = self.queues[device].envelopes.get(message_id)
            if envelope is not None and envelope.outcome == "pending":
                is_over = envelope.expires_at <= self.now
                envelope.outcome = "expired" if is_over else "acknowledged"
            status = "unknown" if envelope is None else envelope.outcome
            results.append({"message_id": str(message_id), "status": status})
        return 200, {"results": results}

    # --- Time ---------------------------------------------------------------------------------

    def advance(self, delta: timedelta) -> None:
        """Time passes; keys that may be forgotten are never used again."""
        self.now += delta
        self.keys = {
            scope: each for scope, each in self.keys.items() if self.now - each.at < KEY_LIFETIME
        }

    def sweep(self) -> None:
        """Due mail expires, mail of disabled devices goes, receipts lapse.

        A disabled device goes with the first sweep that finds nothing of it: the one after the
        sweep in which its last receipt lapsed.
        """
        for device, queue in list(self.queues.items()):
            for envelope in queue.envelopes.values():
                is_over = envelope.expires_at <= self.now or not queue.is_active
                if envelope.outcome == "pending" and is_over:
                    envelope.outcome = "expired"
            if not queue.is_active and not queue.envelopes:
                del self.queues[device]
            for message_id, envelope in list(queue.envelopes.items()):
                if envelope.outcome != "pending" and envelope.lapses_at <= self.now:
                    del queue.envelopes[message_id]

    # --- Reads --------------------------------------------------------------------------------

    def page(self, device: UUID, *, after: int, limit: int) -> tuple[list[Any], bool, int]:
        """(envelopes, whether there is more, the place of the last)."""
        live = [each for each in self.queues[device].live(self.now) if each.place > after]
        page = live[:limit]
        shown = [
            {
                "message_id": str(each.entry.message_id),
                "protocol_version": each.entry.version,
                "ciphertext": each.entry.ciphertext,
                "size": len(each.entry.ciphertext),
                "accepted_at": text_of(each.accepted_at),
                "expires_at": text_of(each.expires_at),
            }
            for each in page
        ]
        return shown, len(live) > limit, page[-1].place if page else after

    def is_stale(self, issued_at: datetime) -> bool:
        """Whether a cursor of that time is over."""
        return issued_at + CURSOR_LIFETIME <= self.now

    def pending(self, device: UUID) -> dict[str, int]:
        """What `GET /v1/device` counts."""
        live = self.queues[device].live(self.now)
        return {"count": len(live), "bytes": sum(len(each.entry.ciphertext) for each in live)}
