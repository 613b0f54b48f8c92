"""One key, one effect, one answer (PROTOCOL section 1, "Idempotency")."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from relay.models import Provisioner
from tests.api.helpers import (
    OMIT,
    assert_problem,
    envelope_for,
    post,
    query,
    set_limits,
    set_retention,
    sweep,
    tables_that_hold,
    untouched,
)
from tests.client import Party, RelayClient, base64_of, make_device, make_provisioner, new_key
from tests.conftest import DatabaseClock

REPLAYED = "idempotency-replayed"
DIGEST, OTHER_DIGEST = "ab" * 32, "cd" * 32


def assert_replay(again: httpx.Response, first: httpx.Response) -> None:
    """The first answer again, byte for byte, and marked."""
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers[REPLAYED] == "true"
    assert REPLAYED not in first.headers


def _put(relay: RelayClient, caller: Party, device_id: UUID, key: str, digest: str = DIGEST) -> Any:
    headers, body = {"Idempotency-Key": key}, {"token_sha256": digest}
    return relay.call("PUT", f"/v1/devices/{device_id}", caller, json=body, headers=headers)


def _delete(relay: RelayClient, caller: Party, device_id: UUID, key: str) -> Any:
    headers = {"Idempotency-Key": key}
    return relay.call("DELETE", f"/v1/devices/{device_id}", caller, headers=headers)


# --- Replays ----------------------------------------------------------------------------------


def test_a_submit_is_replayed_byte_for_byte_and_stored_once(relay: RelayClient) -> None:
    sender, recipient, key = make_device(), make_device(), new_key()
    body = envelope_for(recipient, ttl_seconds=3600)
    first = post(relay, sender, body, key=key)
    assert first.status_code == 201
    with untouched():
        for _ in range(3):
            assert_replay(post(relay, sender, body, key=key), first)
    assert len(relay.walk(recipient)) == 1


def test_the_answer_to_a_duplicate_is_replayed_as_such(relay: RelayClient) -> None:
    device, body = make_device(), envelope_for(make_device())
    assert post(relay, device, body).status_code == 201
    first = post(relay, device, body, key="again")
    assert first.status_code == 200
    assert_replay(post(relay, device, body, key="again"), first)


def test_an_acknowledgement_is_replayed_as_it_was_although_more_has_come(
    relay: RelayClient,
) -> None:
    device, message_id = make_device(), uuid4()
    first = relay.acknowledge(device, [message_id], key="k")
    assert first.json()["results"][0]["status"] == "unknown"
    relay.submit(device, device, message_id=message_id).raise_for_status()
    with untouched():
        assert_replay(relay.acknowledge(device, [message_id], key="k"), first)
    fresh = relay.acknowledge(device, [message_id], key="another")
    assert fresh.json()["results"][0]["status"] == "acknowledged"


def test_a_replayed_put_does_not_bring_an_old_credential_back(relay: RelayClient) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    first = _put(relay, provisioner, device_id, "made")
    assert first.status_code == 201
    rotated = _put(relay, provisioner, device_id, "rotated", OTHER_DIGEST)
    assert rotated.status_code == 200
    with untouched():
        assert_replay(_put(relay, provisioner, device_id, "made"), first)
        assert_replay(_put(relay, provisioner, device_id, "rotated", OTHER_DIGEST), rotated)


def test_a_disabling_is_replayed(relay: RelayClient) -> None:
    provisioner, device = make_provisioner(), make_device()
    first = _delete(relay, provisioner, device.id, "k")
    assert first.status_code == 202
    with untouched():
        assert_replay(_delete(relay, provisioner, device.id, "k"), first)


@pytest.mark.parametrize(
    "text",
    [
        '{"recipient_device_id":"%(to)s","message_id":"%(id)s","protocol_version":1,'
        '"ciphertext":"YQ==","ttl_seconds":60}',
        '\r\n{ "ttl_seconds" :\t60 , "ciphertext": "YQ==", "protocol_version": 1,\n'
        '  "message_id": "%(id)s", "recipient_device_id": "%(to)s" }\n ',
        '{"ttl\\u005fseconds":60,"ciphertext":"\\u0059Q\\u003d=","protocol_version":1,'
        '"message_id":"%(ID)s","recipient_device_id":"urn:uuid:%(to)s"}',
    ],
)
def test_neither_order_nor_white_space_nor_spelling_makes_another_request(
    relay: RelayClient, text: str
) -> None:
    device, message_id = make_device(), uuid4()
    names = {"to": device.id, "id": message_id, "ID": str(message_id).upper()}
    body = envelope_for(device, message_id=str(message_id), ciphertext="YQ==", ttl_seconds=60)
    first = post(relay, device, body, key="k")
    assert first.status_code == 201
    assert_replay(post(relay, device, (text % names).encode(), key="k"), first)


def test_a_rotated_credential_belongs_to_the_same_caller(relay: RelayClient) -> None:
    provisioner, device, heir = make_provisioner(), make_device(), make_device()
    body = envelope_for(device)
    first = post(relay, device, body, key="k")
    query(
        "UPDATE relay_device SET token_sha256 = "
        "(SELECT token_sha256 FROM relay_device WHERE device_id = %s) WHERE device_id = %s",
        *(heir.id, device.id),
    )
    rotated = Party(device.id, f"rld1.{device.id}.{heir.token.split('.')[2]}")
    assert_replay(post(relay, rotated, body, key="k"), first)
    assert post(relay, provisioner, body, key="k").status_code == 200


# --- Whose key it is --------------------------------------------------------------------------


def test_a_key_belongs_to_its_caller(relay: RelayClient) -> None:
    device, other, provisioner = make_device(), make_device(), make_provisioner()
    Provisioner.objects.filter(provisioner_id=provisioner.id).update(provisioner_id=device.id)
    twin = Party(device.id, f"rlp1.{device.id}.{provisioner.token.split('.')[2]}")
    for caller in (device, other, twin):
        answer = relay.submit(caller, device, key="k")
        assert (answer.status_code, REPLAYED in answer.headers) == (201, False)
    assert len(relay.walk(device)) == 3


def test_a_key_belongs_to_its_route(relay: RelayClient) -> None:
    device, provisioner = make_device(), make_provisioner()
    message_id = relay.submit(device, device, key="k").json()["message_id"]
    assert relay.acknowledge(device, [message_id], key="k").status_code == 200
    made = uuid4()
    assert relay.submit(provisioner, device, key="k").status_code == 201
    assert _put(relay, provisioner, made, "k").status_code == 201
    assert _delete(relay, provisioner, made, "k").status_code == 202


# --- The same key, another request ------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"recipient_device_id": "other"},
        {"message_id": "11111111-1111-4111-8111-111111111111"},
        {"protocol_version": 2},
        {"ciphertext": base64_of(b"ciphertexT")},
        {"ciphertext": base64_of(b"ciphertext\0")},
        {"ttl_seconds": 3601},
        {"ttl_seconds": OMIT},
    ],
)
def test_a_key_is_refused_for_a_submit_that_differs_in_one_field(
    relay: RelayClient, changes: dict[str, Any]
) -> None:
    sender, recipient, other = make_device(), make_device(), make_device()
    set_limits(protocol_versions=[1, 2])
    body = envelope_for(recipient, ttl_seconds=3600)
    first = post(relay, sender, body, key="k")
    if "recipient_device_id" in changes:
        changes = {"recipient_device_id": str(other.id)}
    changed = {name: value for name, value in {**body, **changes}.items() if value is not OMIT}
    with untouched():
        assert_problem(post(relay, sender, changed, key="k"), "IDEMPOTENCY_KEY_REUSED")
        assert_replay(post(relay, sender, body, key="k"), first)
    assert post(relay, sender, changed).status_code in (200, 201, 409)


def test_a_ttl_asked_for_afterwards_is_another_request(relay: RelayClient) -> None:
    device = make_device()
    body = envelope_for(device)
    post(relay, device, body, key="k").raise_for_status()
    answer = post(relay, device, {**body, "ttl_seconds": 3600}, key="k")
    assert_problem(answer, "IDEMPOTENCY_KEY_REUSED")


def test_a_key_is_refused_for_other_acknowledgements(relay: RelayClient) -> None:
    device, one, two = make_device(), uuid4(), uuid4()
    first = relay.acknowledge(device, [one, two], key="k")
    with untouched():
        for other in ([two, one], [one], [one, two, two], [one, uuid4()]):
            assert_problem(relay.acknowledge(device, other, key="k"), "IDEMPOTENCY_KEY_REUSED")
        assert_replay(relay.acknowledge(device, [one, two], key="k"), first)


def test_a_key_is_refused_for_another_device_or_digest(relay: RelayClient) -> None:
    provisioner, device_id, other = make_provisioner(), uuid4(), uuid4()
    _put(relay, provisioner, device_id, "k")
    _put(relay, provisioner, other, "another")
    _delete(relay, provisioner, device_id, "d")
    with untouched():
        for answer in (
            _put(relay, provisioner, device_id, "k", OTHER_DIGEST),
            _put(relay, provisioner, other, "k"),
            _put(relay, provisioner, uuid4(), "k"),
            _delete(relay, provisioner, other, "d"),
        ):
            assert_problem(answer, "IDEMPOTENCY_KEY_REUSED")


# --- How long, and what is kept ---------------------------------------------------------------


def test_a_record_outlives_its_envelope_for_24_hours_and_sweeps(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    body = envelope_for(device, ttl_seconds=60)
    first = post(relay, device, body, key="k")
    for hours in (1, 12, 23.99):
        clock.shift(timedelta(hours=hours))
        sweep()
        assert_replay(post(relay, device, body, key="k"), first)
    clock.shift(timedelta(hours=26))
    sweep()
    late = post(relay, device, body, key="k")
    assert (late.status_code, REPLAYED in late.headers) == (200, False)
    assert late.content == first.content


def test_what_is_kept_under_a_key_holds_no_ciphertext_no_token_no_key_and_no_address(
    relay: RelayClient,
) -> None:
    sender, recipient = make_device(), make_device()
    key, ciphertext = "canary-key-0f9e8d7c", b"canary ciphertext of the body"
    relay.submit(sender, recipient, ciphertext, key=key).raise_for_status()
    needles = {
        "the key": key,
        "the key's bytes": key.encode().hex(),
        "base64": base64_of(ciphertext),
        "the ciphertext's bytes": ciphertext.hex(),
        "the token": sender.token.split(".")[2],
        "the sender": str(sender.id),
        "the address": "127.0.0.1",
    }
    places = {name: tables_that_hold(needle) for name, needle in needles.items()}
    assert {name: found for name, found in places.items() if found} == {
        "the ciphertext's bytes": {"relay_body"},
        "the sender": {"relay_device", "quotas_queueusage"},
    }


# --- Replays win ------------------------------------------------------------------------------


def _disable(relay: RelayClient, recipient: Party) -> None:
    relay.call("DELETE", f"/v1/devices/{recipient.id}", make_provisioner()).raise_for_status()


def _acknowledge_and_sweep(relay: RelayClient, recipient: Party) -> None:
    relay.acknowledge(recipient, [each["message_id"] for each in relay.walk(recipient)])
    sweep()


def _fill(relay: RelayClient, recipient: Party) -> None:
    set_limits(pending_count=10)
    for _ in range(9):
        relay.submit(recipient, recipient).raise_for_status()
    assert_problem(relay.submit(recipient, recipient), "RECIPIENT_QUOTA_EXCEEDED")


SINCE: dict[str, Callable[[RelayClient, Party], None]] = {
    "the size limit fell": lambda relay, recipient: set_limits(envelope_bytes=1024),
    "the version went": lambda relay, recipient: set_limits(protocol_versions=[2]),
    "the minimum rose": lambda relay, recipient: set_retention(min_ttl_seconds=86_400),
    "the recipient was disabled": _disable,
    "the queue filled up": _fill,
    "it was acknowledged and removed": _acknowledge_and_sweep,
}


@pytest.mark.parametrize("since", SINCE)
def test_a_replay_wins_over_whatever_happened_since(relay: RelayClient, since: str) -> None:
    sender, recipient = make_device(), make_device()
    body = envelope_for(recipient, ciphertext=base64_of(b"x" * 2000), ttl_seconds=3600)
    first = post(relay, sender, body, key="k")
    assert first.status_code == 201
    SINCE[since](relay, recipient)
    assert_replay(post(relay, sender, body, key="k"), first)
