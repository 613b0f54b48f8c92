"""The checks come in one order, and the first that fails answers (PROTOCOL section 1).

Each fault below spoils one and the same good submit; every two faults of different stages are
put together, and the earlier stage must answer. Within a stage the order is the one in which
the protocol lists its parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from uuid import UUID

import httpx
import pytest

from quotas.models import QueueUsage
from tests.api.helpers import (
    assert_problem,
    envelope_for,
    json_text,
    post,
    set_limits,
    set_retention,
    untouched,
)
from tests.client import Party, RelayClient, base64_of, make_device, make_provisioner, new_key

MIB = 2**20


@dataclass
class _Scene:
    """A submit that would be accepted, until faults spoil it."""

    relay: RelayClient
    sender: Party
    recipient: Party
    body: dict[str, object]
    method: str = "POST"
    path: str = "/v1/envelopes"
    token: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    tail: str = ""

    @classmethod
    def of(cls, relay: RelayClient) -> "_Scene":
        """One device's submit to another."""
        sender, recipient = make_device(), make_device()
        scene = cls(relay, sender, recipient, envelope_for(recipient, ttl_seconds=3600))
        scene.token = f"Bearer {sender.token}"
        scene.headers = {"Content-Type": "application/json", "Idempotency-Key": new_key()}
        return scene

    def send(self) -> httpx.Response:
        """The request as it is now."""
        headers = {"Authorization": self.token, **self.headers}
        content = json_text(self.body) + self.tail.encode()
        return self.relay.http.request(self.method, self.path, content=content, headers=headers)

    @property
    def message_id(self) -> UUID:
        return UUID(str(self.body["message_id"]))


# Faults that are made before the request by other, good requests; they come in this order,
# since a disabled recipient takes nothing any more and a spent rate lets nothing more through.


def _queue_full(scene: _Scene) -> None:
    usage = QueueUsage.objects.filter(device_id=scene.recipient.id)
    assert usage.update(pending_count=1_000) == 1  # honest filling: test_refusals


def _taken(scene: _Scene) -> None:
    other = make_provisioner()
    scene.relay.submit(
        other, scene.recipient, b"else", message_id=scene.message_id
    ).raise_for_status()


def _key_used(scene: _Scene) -> None:
    key = scene.headers["Idempotency-Key"]
    elsewhere = make_device()
    post(scene.relay, scene.sender, envelope_for(elsewhere), key=key).raise_for_status()


def _recipient_gone(scene: _Scene) -> None:
    path = f"/v1/devices/{scene.recipient.id}"
    scene.relay.call("DELETE", path, make_provisioner()).raise_for_status()


def _rate_spent(scene: _Scene) -> None:
    set_limits(actor_rate=1, window_seconds=3_600)
    scene.relay.submit(scene.sender, scene.sender)


# Faults of the request itself.


def _no_such_route(scene: _Scene) -> None:
    scene.path = "/v1/envelope"


def _no_such_method(scene: _Scene) -> None:
    scene.method = "PUT"


def _bad_token(scene: _Scene) -> None:
    scene.token = scene.token[:-3]


def _takes_no_json(scene: _Scene) -> None:
    scene.headers["Accept"] = "text/html"


def _media_type(scene: _Scene) -> None:
    scene.headers["Content-Type"] = "text/plain"


def _encoding(scene: _Scene) -> None:
    scene.headers["Content-Encoding"] = "gzip"


def _too_much(scene: _Scene) -> None:
    scene.tail = " " * (8 * MIB) + scene.tail


def _not_json(scene: _Scene) -> None:
    scene.tail += "}"


def _unknown_member(scene: _Scene) -> None:
    scene.body["ttl_second"] = 60


def _no_key(scene: _Scene) -> None:
    del scene.headers["Idempotency-Key"]


def _bad_key(scene: _Scene) -> None:
    scene.headers["Idempotency-Key"] = '"'


def _version(scene: _Scene) -> None:
    scene.body["protocol_version"] = 9


def _size(scene: _Scene) -> None:
    scene.body["ciphertext"] = base64_of(b"x" * 65_537)


def _ttl(scene: _Scene) -> None:
    scene.body["ttl_seconds"] = 1


#: (stage, place within the stage, code, fault). None as the place: no order within the stage.
FAULTS: dict[str, tuple[int, int | None, str, Callable[[_Scene], None]]] = {
    "route": (1, 1, "NOT_FOUND", _no_such_route),
    "method": (1, 2, "METHOD_NOT_ALLOWED", _no_such_method),
    "token": (2, 1, "UNAUTHENTICATED", _bad_token),
    "accept": (3, None, "NOT_ACCEPTABLE", _takes_no_json),
    "media type": (3, 1, "UNSUPPORTED_MEDIA_TYPE", _media_type),
    "encoding": (3, 2, "UNSUPPORTED_MEDIA_TYPE", _encoding),
    "length": (3, 3, "REQUEST_TOO_LARGE", _too_much),
    "not JSON": (3, 4, "MALFORMED_REQUEST", _not_json),
    "a member": (3, 5, "VALIDATION_FAILED", _unknown_member),
    "rate": (4, 1, "RATE_LIMITED", _rate_spent),
    "no key": (5, None, "IDEMPOTENCY_KEY_MISSING", _no_key),
    "bad key": (5, None, "IDEMPOTENCY_KEY_INVALID", _bad_key),
    "key used": (5, None, "IDEMPOTENCY_KEY_REUSED", _key_used),
    "version": (6, 1, "PROTOCOL_VERSION_UNSUPPORTED", _version),
    "size": (6, 2, "ENVELOPE_TOO_LARGE", _size),
    "ttl": (6, 3, "TTL_OUT_OF_RANGE", _ttl),
    "recipient": (7, 1, "RECIPIENT_UNKNOWN", _recipient_gone),
    "conflict": (8, 1, "MESSAGE_ID_CONFLICT", _taken),
    "quota": (9, 1, "RECIPIENT_QUOTA_EXCEEDED", _queue_full),
}
#: What other requests prepare, in the order in which they can.
PREPARED = ["conflict", "quota", "key used", "recipient", "rate"]


def _pairs() -> list[tuple[str, str]]:
    """(the one that answers, the other) for every two faults that have an order."""
    pairs = []
    for one, two in combinations(FAULTS, 2):
        stages, places = zip(FAULTS[one][:2], FAULTS[two][:2], strict=True)
        if stages[0] != stages[1] or None not in places:
            pairs.append((one, two))
    return pairs


def _spoil(scene: _Scene, *names: str) -> None:
    for name in [*PREPARED, *[each for each in FAULTS if each not in PREPARED]]:
        if name in names:
            FAULTS[name][3](scene)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_alone_is_what_answers(relay: RelayClient, name: str) -> None:
    scene = _Scene.of(relay)
    _spoil(scene, name)
    assert_problem(scene.send(), FAULTS[name][2])


def test_the_submit_that_is_spoilt_would_be_accepted(relay: RelayClient) -> None:
    assert _Scene.of(relay).send().status_code == 201


@pytest.mark.parametrize("first", FAULTS)
def test_of_two_faults_the_earlier_check_answers_and_nothing_changes(
    relay: RelayClient, first: str
) -> None:
    for one, two in _pairs():
        if one != first:
            continue
        scene = _Scene.of(relay)
        _spoil(scene, one, two)
        with untouched(*(["outbox_event"] if one == "conflict" else [])):
            answer = scene.send()
        assert answer.json()["code"] == FAULTS[one][2], f"{one} before {two}"
        assert_problem(answer, FAULTS[one][2])


# --- What a replay and a duplicate pass by ----------------------------------------------------


@pytest.mark.parametrize("later", ["version", "size", "ttl", "recipient", "quota"])
def test_a_replay_wins_over_every_later_check(relay: RelayClient, later: str) -> None:
    scene = _Scene.of(relay)
    first = scene.send()
    assert first.status_code == 201
    if later in ("version", "size"):
        set_limits(protocol_versions=[9], envelope_bytes=1024)
    elif later == "ttl":
        set_retention(min_ttl_seconds=86_400)
    elif later == "quota":
        _queue_full(scene)
    elif later == "recipient":
        _recipient_gone(scene)
    with untouched():
        again = scene.send()
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["idempotency-replayed"] == "true"


def test_a_replay_is_refused_by_every_earlier_check(relay: RelayClient) -> None:
    earlier = [name for name, (stage, *_) in FAULTS.items() if stage < 5]
    for name in earlier:
        scene = _Scene.of(relay)
        scene.send().raise_for_status()
        _spoil(scene, name)
        with untouched():
            assert_problem(scene.send(), FAULTS[name][2])


def test_a_duplicate_wins_over_a_full_queue(relay: RelayClient) -> None:
    scene = _Scene.of(relay)
    first = scene.send()
    _queue_full(scene)
    scene.headers["Idempotency-Key"] = new_key()
    again = scene.send()
    assert (again.status_code, again.json()) == (200, first.json())
    other = relay.submit(scene.sender, scene.recipient, b"another")
    assert_problem(other, "RECIPIENT_QUOTA_EXCEEDED")


@pytest.mark.parametrize("name", ["version", "size", "ttl", "recipient"])
def test_a_duplicate_is_refused_by_every_earlier_check(relay: RelayClient, name: str) -> None:
    scene = _Scene.of(relay)
    scene.send().raise_for_status()
    scene.headers["Idempotency-Key"] = new_key()
    _spoil(scene, name)
    with untouched():
        assert_problem(scene.send(), FAULTS[name][2])


# --- The kind of caller -----------------------------------------------------------------------


def test_the_kind_of_caller_comes_after_the_method_and_before_the_body(
    relay: RelayClient,
) -> None:
    provisioner, device = make_provisioner(), make_device()
    put = f"/v1/devices/{device.id}"
    text = {"Content-Type": "text/plain", "Content-Encoding": "gzip", "Accept": "text/html"}
    answers = {
        "wrong method": relay.call("PATCH", put, device, content=b"x", headers=text),
        "wrong kind": relay.call("PUT", put, device, content=b"x", headers=text),
        "wrong kind, bad id": relay.call("DELETE", "/v1/devices/x", device),
        "wrong kind of ack": relay.call("POST", "/v1/acks", provisioner, content=b"{"),
        "wrong kind of pull": relay.call("GET", "/v1/envelopes?limit=0&x=1", provisioner),
    }
    assert_problem(answers.pop("wrong method"), "METHOD_NOT_ALLOWED")
    for answer in answers.values():
        assert_problem(answer, "FORBIDDEN")


def test_a_body_of_8_mib_and_more_is_not_read_for_a_caller_who_is_nobody(
    relay: RelayClient,
) -> None:
    scene = _Scene.of(relay)
    _spoil(scene, "token", "length")
    assert_problem(scene.send(), "UNAUTHENTICATED")
