"""The calls of the state machine: each is made over HTTP and held against the model."""

import base64
import json
import socket
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import urlsplit
from uuid import UUID

import httpx

from tests.api.helpers import assert_problem, query
from tests.client import Party, RelayClient, base64_of
from tests.conftest import DatabaseClock
from tests.properties.model import QUOTA, Entry, Model, text_of

SUBMIT, BATCH, ACKS = "/v1/envelopes", "/v1/envelopes/batch", "/v1/acks"
_WIPED = (
    "relay_body",
    "relay_envelope",
    "quotas_queueusage",
    "relay_device",
    "relay_provisioner",
    "idempotency_record",
    "outbox_event",
)


def wipe() -> None:
    """Forget the rows of the example before."""
    for table in _WIPED:
        query(f"DELETE FROM {table}")


@dataclass(frozen=True)
class Write:
    """One POST: route, caller and key, and what it says as the model reads it."""

    path: str
    caller: Party
    key: str | None
    said: Any

    @property
    def scope(self) -> Any:
        """Whom the key belongs to, and where; None without a key."""
        return None if self.key is None else (self.caller.id, self.path, self.key)

    def body(self) -> dict[str, Any]:
        """The JSON document."""
        if self.path == SUBMIT:
            return _document(self.said)
        if self.path == BATCH:
            return {"envelopes": [_document(entry) for entry in self.said]}
        return {"message_ids": [str(message_id) for message_id in self.said]}

    def headers(self) -> dict[str, str]:
        """All but the caller's token."""
        key = {} if self.key is None else {"Idempotency-Key": self.key}
        return {"Content-Type": "application/json", **key}


def _document(entry: Entry) -> dict[str, Any]:
    document = {
        "recipient_device_id": str(entry.recipient),
        "message_id": str(entry.message_id),
        "protocol_version": entry.version,
        "ciphertext": base64_of(entry.ciphertext),
    }
    return document if entry.ttl is None else {**document, "ttl_seconds": entry.ttl}


@dataclass(frozen=True)
class Kept:
    """A cursor that a device keeps."""

    device: UUID
    token: str
    place: int
    issued_at: datetime


class Calls:
    """The relay and its model, side by side."""

    steps: ClassVar[Counter[str]] = Counter()

    def __init__(self, relay: RelayClient, now: datetime) -> None:
        self.relay = relay
        self.model = Model(now)
        self.answered = 0
        self._first: dict[Any, bytes] = {}
        self._clock = DatabaseClock()
        self.set_clock()

    def set_clock(self) -> None:
        """PostgreSQL's clock stands where the model's does."""
        self._clock.freeze(text_of(self.model.now))

    def knows_nothing_of(self, write: Write) -> bool:
        """Whether this key's answer is so old that the relay may have it or not."""
        return write.scope in self._first and write.scope not in self.model.keys

    def write(self, write: Write) -> None:
        """Send it; the answer must be the model's."""
        status, document, replayed = self._expected(write)
        answer = self.relay.call(
            "POST", write.path, write.caller, json=write.body(), headers=write.headers()
        )
        self._count(f"{write.path} {status}{' replayed' if replayed else ''}")
        assert ("idempotency-replayed" in answer.headers) == replayed
        self._compare(answer, status, document)
        if replayed:
            assert answer.content == self._first[write.scope]
        elif status < 300:
            self._first[write.scope] = answer.content

    def write_and_lose_the_answer(self, write: Write) -> None:
        """Hang up as the answer begins, and send the same again under the same key."""
        status, document, _ = self._expected(write)
        self._send_and_hang_up(write)
        answer = self.relay.call(
            "POST", write.path, write.caller, json=write.body(), headers=write.headers()
        )
        self._count(f"{write.path} {status} after a lost answer")
        self._compare(answer, status, document)
        if status < 300:
            assert answer.headers["idempotency-replayed"] == "true"
            self._first.setdefault(write.scope, answer.content)
            assert answer.content == self._first[write.scope]

    def _count(self, what: str) -> None:
        self.answered += 1
        self.steps[what] += 1

    def _expected(self, write: Write) -> tuple[int, Any, bool]:
        if not self._may_call(write.caller):
            return 401, "UNAUTHENTICATED", False
        effects = {
            SUBMIT: lambda: self.model.submit(write.said),
            BATCH: lambda: self.model.batch(write.said),
            ACKS: lambda: self.model.acknowledge(write.caller.id, write.said),
        }
        return self.model.once(write.scope, write.said, effects[write.path])

    def _may_call(self, caller: Party) -> bool:
        queue = self.model.queues.get(caller.id)
        return caller.token.startswith("rlp1") or (queue is not None and queue.is_active)

    def _send_and_hang_up(self, write: Write) -> None:
        body = json.dumps(write.body()).encode()
        headers = {
            **write.headers(),
            "Host": "127.0.0.1",
            "Authorization": f"Bearer {write.caller.token}",
            "Content-Length": str(len(body)),
        }
        lines = [f"POST {write.path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        address = urlsplit(self.relay.url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as line:
            line.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            assert line.recv(1) == b"H"  # HTTP/1.1 …: it was handled, and nobody will read more

    def _compare(self, answer: httpx.Response, status: int, document: Any) -> None:
        if isinstance(document, str):
            assert_problem(answer, document)
            return
        assert answer.status_code == status, answer.text
        told = answer.json()
        for result in told.get("results", []):
            error = result.get("error", {})
            assert ("retry_after" in error) == (error.get("code") == QUOTA)
            if error:
                assert 30 <= error.pop("retry_after", 30) <= 60
        assert told == document

    # --- Reads --------------------------------------------------------------------------------

    def pull(self, device: Party, *, limit: int, kept: Kept | None = None) -> Kept | None:
        """A page, from the start or from a cursor; the next cursor, unless it was refused."""
        parameters = {"limit": limit} if kept is None else {"limit": limit, "cursor": kept.token}
        answer = self.relay.pull(device, **parameters)
        refusal = self._pull_refusal(device, kept)
        self._count(f"pull {refusal or 200}")
        if refusal is not None:
            assert_problem(answer, refusal)
            return None
        after = 0 if kept is None else kept.place
        shown, has_more, place = self.model.page(device.id, after=after, limit=limit)
        page = answer.raise_for_status().json()
        for envelope in page["envelopes"]:
            envelope["ciphertext"] = base64.b64decode(envelope["ciphertext"], validate=True)
        assert (page["envelopes"], page["has_more"]) == (shown, has_more)
        return Kept(device.id, page["next_cursor"], place, self.model.now)

    def _pull_refusal(self, device: Party, kept: Kept | None) -> str | None:
        if not self._may_call(device):
            return "UNAUTHENTICATED"
        if kept is None:
            return None
        if kept.device != device.id:
            return "CURSOR_INVALID"
        return "CURSOR_STALE" if self.model.is_stale(kept.issued_at) else None

    def walk(self, device: Party, *, limit: int, kept: Kept | None = None) -> None:
        """Page by page until a page is empty."""
        while True:
            kept = self.pull(device, limit=limit, kept=kept)
            if kept is None or not self.model.page(device.id, after=kept.place, limit=1)[0]:
                break
        self._count("walk")

    def look(self, device: Party) -> None:
        """What the device sees of its own queue."""
        answer = self.relay.device(device)
        if not self._may_call(device):
            assert_problem(answer, "UNAUTHENTICATED")
            return
        rules = self.model.rules
        told = answer.raise_for_status().json()
        assert told["pending"] == self.model.pending(device.id)
        assert told["limits"] == {
            "envelope_bytes": rules.envelope_bytes,
            "pending_count": rules.pending_count,
            "pending_bytes": rules.pending_bytes,
        }

    def disable(self, provisioner: Party, device: Party) -> None:
        """`DELETE /v1/devices/…`: 202, also when repeated, until its last receipt lapsed."""
        answer = self.relay.call("DELETE", f"/v1/devices/{device.id}", provisioner)
        queue = self.model.queues.get(device.id)
        self._count(f"disable {404 if queue is None else 202}")
        if queue is None:
            assert_problem(answer, "NOT_FOUND")
            return
        queue.is_active = False
        assert answer.status_code == 202
        assert answer.json() == {"device_id": str(device.id), "state": "disabled"}
