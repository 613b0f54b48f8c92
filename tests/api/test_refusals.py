"""A refused request leaves its key free, and no row behind (PROTOCOL section 1).

Only the security event of a conflict and the inline expiry of a full queue may stay.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.api.helpers import (
    assert_problem,
    envelope_for,
    post,
    query,
    set_limits,
    set_retention,
    untouched,
)
from tests.client import Party, RelayClient, base64_of, make_device, make_provisioner
from tests.conftest import DatabaseClock

REPLAYED = "idempotency-replayed"


@dataclass(frozen=True)
class Refused:
    """A request that is refused: how, what may stay behind, and what cures it."""

    code: str
    spoil: Callable[["_Scene"], None] = lambda scene: None
    cure: Callable[["_Scene"], None] = lambda scene: None
    stays: tuple[str, ...] = ()


@dataclass
class _Scene:
    relay: RelayClient
    sender: Party
    recipient: Party
    body: Any
    headers: dict[str, Any]

    def send(self) -> httpx.Response:
        return post(self.relay, self.sender, self.body, key="k", headers=self.headers)

    def change(self, **members: Any) -> None:
        self.body = {**self.body, **members}

    def add_header(self, **headers: str) -> None:
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def replace(self, body: bytes) -> None:
        self.body = body

    def fill(self) -> None:
        set_limits(pending_count=10)
        for _ in range(10):
            self.relay.submit(self.sender, self.recipient).raise_for_status()

    def take(self, ciphertext: bytes) -> None:
        message_id = UUID(self.body["message_id"])
        answer = self.relay.submit(self.sender, self.recipient, ciphertext, message_id=message_id)
        answer.raise_for_status()

    def spend(self) -> None:
        set_limits(actor_rate=1, window_seconds=3_600)
        self.relay.submit(self.sender, self.sender).raise_for_status()

    def acknowledge_all(self) -> None:
        ids = [each["message_id"] for each in self.relay.walk(self.recipient)]
        self.relay.acknowledge(self.recipient, ids).raise_for_status()

    def make_device(self) -> None:
        path = f"/v1/devices/{self.body['recipient_device_id']}"
        digest = {"token_sha256": "ab" * 32}
        self.relay.call("PUT", path, make_provisioner(), json=digest).raise_for_status()


def _fresh(scene: _Scene) -> None:
    scene.body, scene.headers = envelope_for(scene.recipient), {}


REFUSED = {
    "media type": Refused(
        "UNSUPPORTED_MEDIA_TYPE", lambda s: s.add_header(Content_Type="text/plain"), _fresh
    ),
    "encoding": Refused(
        "UNSUPPORTED_MEDIA_TYPE", lambda s: s.add_header(Content_Encoding="gzip"), _fresh
    ),
    "accept": Refused("NOT_ACCEPTABLE", lambda s: s.add_header(Accept="text/html"), _fresh),
    "token": Refused(
        "UNAUTHENTICATED",
        lambda s: setattr(s, "sender", Party(s.sender.id, s.sender.token + "x")),
        lambda s: setattr(s, "sender", Party(s.sender.id, s.sender.token[:-1])),
    ),
    "not JSON": Refused("MALFORMED_REQUEST", lambda s: s.replace(b"{"), _fresh),
    "8 MiB and 1": Refused("REQUEST_TOO_LARGE", lambda s: s.replace(b" " * 8_388_609), _fresh),
    "a field": Refused("VALIDATION_FAILED", lambda s: s.change(message_id="x"), _fresh),
    "rate": Refused("RATE_LIMITED", _Scene.spend, lambda s: set_limits(actor_rate=1_000)),
    "version": Refused(
        "PROTOCOL_VERSION_UNSUPPORTED",
        lambda s: s.change(protocol_version=2),
        lambda s: set_limits(protocol_versions=[1, 2]),
    ),
    "size": Refused(
        "ENVELOPE_TOO_LARGE",
        lambda s: s.change(ciphertext=base64_of(b"x" * 65_537)),
        lambda s: set_limits(envelope_bytes=65_537),
    ),
    "ttl": Refused(
        "TTL_OUT_OF_RANGE",
        lambda s: s.change(ttl_seconds=59),
        lambda s: set_retention(min_ttl_seconds=59),
    ),
    "recipient": Refused(
        "RECIPIENT_UNKNOWN",
        lambda s: s.change(recipient_device_id=str(uuid4())),
        _Scene.make_device,
    ),
    "conflict": Refused(
        "MESSAGE_ID_CONFLICT",
        lambda s: s.take(b"another"),
        lambda s: s.change(message_id=str(uuid4())),
        stays=("outbox_event",),
    ),
    "quota": Refused("RECIPIENT_QUOTA_EXCEEDED", _Scene.fill, _Scene.acknowledge_all),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_submit_leaves_its_key_free_and_no_row_behind(
    relay: RelayClient, kind: str
) -> None:
    refused, sender, recipient = REFUSED[kind], make_device(), make_device()
    scene = _Scene(relay, sender, recipient, envelope_for(recipient), {})
    refused.spoil(scene)
    with untouched(*refused.stays):
        for _ in range(2):
            assert_problem(scene.send(), refused.code)
    refused.cure(scene)
    answer = scene.send()
    assert (answer.status_code, REPLAYED in answer.headers) == (201, False)
    again = scene.send()
    assert (again.content, again.headers.get(REPLAYED)) == (answer.content, "true")


def test_a_refused_device_call_leaves_its_key_free(relay: RelayClient) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    path, headers = f"/v1/devices/{device_id}", {"Idempotency-Key": "k"}
    digest = {"token_sha256": "ab" * 32}
    with untouched():
        assert_problem(relay.call("DELETE", path, provisioner, headers=headers), "NOT_FOUND")
    relay.call("PUT", path, provisioner, json=digest).raise_for_status()
    deleted = relay.call("DELETE", path, provisioner, headers=headers)
    assert (deleted.status_code, REPLAYED in deleted.headers) == (202, False)
    with untouched():
        put = relay.call("PUT", path, provisioner, json=digest, headers=headers)
        assert_problem(put, "DEVICE_DISABLED")
    other = f"/v1/devices/{uuid4()}"
    made = relay.call("PUT", other, provisioner, json=digest, headers=headers)
    assert (made.status_code, REPLAYED in made.headers) == (201, False)


def test_a_refused_acknowledgement_leaves_its_key_free(relay: RelayClient) -> None:
    device = make_device()
    with untouched():
        answer = post(relay, device, {"message_ids": []}, path="/v1/acks", key="k")
        assert_problem(answer, "VALIDATION_FAILED")
    answer = relay.acknowledge(device, [uuid4()], key="k")
    assert (answer.status_code, REPLAYED in answer.headers) == (200, False)


def test_a_refusal_for_a_full_queue_keeps_nothing_but_the_expiry_of_what_was_due(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(envelope_bytes=2**20, pending_bytes=2**20)
    relay.submit(sender, recipient, b"x" * 1000, ttl_seconds=60).raise_for_status()
    relay.submit(sender, recipient, b"x" * (2**20 - 1000)).raise_for_status()
    clock.shift(timedelta(seconds=61))
    with untouched("relay_envelope", "quotas_queueusage"):
        answer = relay.submit(sender, recipient, b"x" * 1001, key="k")
        assert_problem(answer, "RECIPIENT_QUOTA_EXCEEDED")
    outcomes = query("SELECT outcome FROM relay_envelope WHERE device_id = %s", recipient.id)
    assert sorted(outcomes) == [("expired",), ("pending",)]
    assert relay.device(recipient).json()["pending"] == {"count": 1, "bytes": 2**20 - 1000}
    assert relay.submit(sender, recipient, b"x" * 1000, key="k").status_code == 201
