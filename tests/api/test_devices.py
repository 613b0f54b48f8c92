"""Making, rotating and disabling devices, and what a device sees (PROTOCOL section 6)."""

import base64
import secrets
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from relay.models import Body, Device
from tests import factories
from tests.api.helpers import assert_problem, query, set_limits, sweep, untouched
from tests.client import Party, RelayClient, make_device, make_provisioner
from tests.conftest import DatabaseClock


def _credential(device_id: UUID) -> tuple[Party, str]:
    """A device's caller, and the digest that its provisioner registers."""
    secret = secrets.token_bytes(32)
    text = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return Party(device_id, f"rld1.{device_id}.{text}"), sha256(secret).hexdigest()


def _put(relay: RelayClient, caller: Party, device_id: Any, digest: str) -> httpx.Response:
    body = {"token_sha256": digest}
    return relay.call("PUT", f"/v1/devices/{device_id}", caller, json=body)


def _delete(relay: RelayClient, caller: Party, device_id: Any) -> httpx.Response:
    return relay.call("DELETE", f"/v1/devices/{device_id}", caller)


# --- PUT --------------------------------------------------------------------------------------


def test_a_new_device_is_201_and_its_token_works_at_once(relay: RelayClient) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    device, digest = _credential(device_id)
    assert relay.device(device).status_code == 401
    made = _put(relay, provisioner, device_id, digest)
    assert made.status_code == 201
    assert made.json() == {"device_id": str(device_id), "state": "active"}
    assert relay.device(device).status_code == 200
    assert relay.submit(provisioner, device).status_code == 201


def test_a_rotation_is_200_the_new_token_works_and_the_old_one_stops(relay: RelayClient) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    old, old_digest = _credential(device_id)
    new, new_digest = _credential(device_id)
    _put(relay, provisioner, device_id, old_digest)
    relay.submit(old, old).raise_for_status()
    rotated = _put(relay, provisioner, device_id, new_digest)
    assert rotated.status_code == 200
    assert rotated.json() == {"device_id": str(device_id), "state": "active"}
    assert relay.device(new).status_code == 200
    assert_problem(relay.device(old), "UNAUTHENTICATED")
    assert len(relay.walk(new)) == 1


def test_the_same_credential_again_is_200_and_changes_nothing(relay: RelayClient) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    device, digest = _credential(device_id)
    _put(relay, provisioner, device_id, digest)
    with untouched():
        again = _put(relay, provisioner, device_id, digest)
    assert again.status_code == 200
    assert relay.device(device).status_code == 200


@pytest.mark.parametrize("spell", [str.upper, str.lower, str.swapcase, str.title])
def test_the_digest_is_known_in_any_case_of_letters(
    relay: RelayClient, spell: Callable[[str], str]
) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    device, digest = _credential(device_id)
    assert _put(relay, provisioner, device_id, spell(digest)).status_code == 201
    assert relay.device(device).status_code == 200


def test_any_provisioner_manages_any_device(relay: RelayClient) -> None:
    device_id = uuid4()
    _, digest = _credential(device_id)
    assert _put(relay, make_provisioner(), device_id, digest).status_code == 201
    assert _put(relay, make_provisioner(), device_id, digest).status_code == 200
    assert _delete(relay, make_provisioner(), device_id).status_code == 202


def test_a_device_id_is_known_in_every_text_form(relay: RelayClient) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    _, digest = _credential(device_id)
    forms = [str(device_id), str(device_id).upper(), device_id.urn, device_id.urn.upper()]
    answers = [_put(relay, provisioner, form, digest) for form in forms]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200]
    assert {answer.json()["device_id"] for answer in answers} == {str(device_id)}
    gone = [_delete(relay, provisioner, form) for form in forms]
    assert {(answer.status_code, answer.json()["device_id"]) for answer in gone} == {
        (202, str(device_id))
    }


def test_the_secret_of_a_device_is_not_in_the_database(relay: RelayClient) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    device, digest = _credential(device_id)
    _put(relay, provisioner, device_id, digest)
    relay.device(device).raise_for_status()
    assert bytes(Device.objects.get(device_id=device_id).token_sha256) == bytes.fromhex(digest)
    [(row,)] = query("SELECT d::text FROM relay_device AS d WHERE device_id = %s", device_id)
    text = device.token.split(".")[2]
    raw = base64.urlsafe_b64decode(text + "=")
    assert text not in row
    assert raw.hex() not in row


# --- DELETE -----------------------------------------------------------------------------------


def test_a_disabled_device_is_202_also_when_repeated(relay: RelayClient) -> None:
    provisioner, device = make_provisioner(), make_device()
    first = _delete(relay, provisioner, device.id)
    with untouched():
        second = _delete(relay, provisioner, device.id)
    for answer in (first, second):
        assert answer.status_code == 202
        assert answer.json() == {"device_id": str(device.id), "state": "disabled"}


def test_an_id_that_was_never_made_is_not_found(relay: RelayClient) -> None:
    provisioner = make_provisioner()
    with untouched():
        for never in (uuid4(), provisioner.id):
            assert_problem(_delete(relay, provisioner, never), "NOT_FOUND")


def test_a_disabled_device_is_no_recipient_no_caller_and_cannot_be_made_again(
    relay: RelayClient,
) -> None:
    provisioner, device, other = make_provisioner(), make_device(), make_device()
    relay.submit(other, device).raise_for_status()
    _delete(relay, provisioner, device.id).raise_for_status()
    with untouched():
        assert_problem(relay.submit(other, device), "RECIPIENT_UNKNOWN")
        assert_problem(_put(relay, provisioner, device.id, "ab" * 32), "DEVICE_DISABLED")
        for answer in (
            relay.device(device),
            relay.pull(device),
            relay.acknowledge(device, [uuid4()]),
            relay.submit(device, other),
        ):
            assert_problem(answer, "UNAUTHENTICATED")


def test_the_mail_of_a_disabled_device_goes_in_the_background_and_its_row_with_its_last_receipt(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    provisioner, device, other = make_provisioner(), make_device(), make_device()
    for ciphertext in (b"one", b"two"):
        relay.submit(other, device, ciphertext).raise_for_status()
    relay.submit(other, other, b"kept").raise_for_status()
    _delete(relay, provisioner, device.id).raise_for_status()
    sweep()
    assert [bytes(body.ciphertext) for body in Body.objects.all()] == [b"kept"]
    assert _delete(relay, provisioner, device.id).status_code == 202
    assert_problem(_put(relay, provisioner, device.id, "ab" * 32), "DEVICE_DISABLED")
    clock.shift(timedelta(days=8, seconds=1))
    for _ in range(2):  # the receipts in one round, the row in the next
        sweep()
    with untouched():
        assert_problem(_delete(relay, provisioner, device.id), "NOT_FOUND")
        assert_problem(relay.submit(other, device), "RECIPIENT_UNKNOWN")
    assert _put(relay, provisioner, device.id, "ab" * 32).status_code == 201
    assert relay.submit(other, device).status_code == 201


def test_a_disabled_device_that_never_had_mail_can_be_made_again_after_a_sweep(
    relay: RelayClient,
) -> None:
    provisioner, device_id = make_provisioner(), uuid4()
    _put(relay, provisioner, device_id, "ab" * 32)
    _delete(relay, provisioner, device_id)
    assert_problem(_put(relay, provisioner, device_id, "ab" * 32), "DEVICE_DISABLED")
    sweep()
    new, digest = _credential(device_id)
    assert _put(relay, provisioner, device_id, digest).status_code == 201
    assert relay.walk(new) == []


# --- GET /v1/device ---------------------------------------------------------------------------


def test_a_new_device_sees_itself_with_nothing_pending(relay: RelayClient) -> None:
    device = make_device()
    answer = relay.device(device)
    assert answer.status_code == 200
    assert answer.json() == {
        "device_id": str(device.id),
        "pending": {"count": 0, "bytes": 0},
        "limits": {"envelope_bytes": 65_536, "pending_count": 1_000, "pending_bytes": 67_108_864},
        "wake": None,
    }


def test_a_device_sees_the_limits_in_force(relay: RelayClient) -> None:
    device = make_device()
    set_limits(envelope_bytes=1_024, pending_count=10, pending_bytes=1_048_576)
    limits = {"envelope_bytes": 1_024, "pending_count": 10, "pending_bytes": 1_048_576}
    assert relay.device(device).json()["limits"] == limits


def test_pending_is_what_could_be_pulled_now(relay: RelayClient, clock: DatabaseClock) -> None:
    device, other = make_device(), make_device()

    def pending() -> dict[str, int]:
        return dict(relay.device(device).json()["pending"])

    ids = [
        relay.submit(other, device, b"x" * size, **members).json()["message_id"]
        for size, members in ((100, {}), (20, {"ttl_seconds": 60}), (3, {"ttl_seconds": 120}))
    ]
    relay.submit(other, other, b"another's").raise_for_status()
    assert pending() == {"count": 3, "bytes": 123}
    relay.acknowledge(device, ids[:1]).raise_for_status()
    assert pending() == {"count": 2, "bytes": 23}
    clock.shift(timedelta(seconds=61))
    assert pending() == {"count": 1, "bytes": 3}  # expired, whether or not it was swept
    sweep()
    assert pending() == {"count": 1, "bytes": 3}
    relay.submit(other, device, b"x" * 7).raise_for_status()
    assert pending() == {"count": 2, "bytes": 10}
    clock.shift(timedelta(seconds=121))
    relay.acknowledge(device, ids).raise_for_status()
    assert pending() == {"count": 1, "bytes": 7}


def test_looking_at_oneself_changes_nothing(relay: RelayClient, clock: DatabaseClock) -> None:
    device = make_device()
    factories.store_due(device.id)
    with untouched():
        for _ in range(2):
            assert relay.device(device).json()["pending"] == {"count": 0, "bytes": 0}
