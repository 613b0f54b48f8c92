"""The fields of a submit: what is taken, what is refused, and how it is named.

PROTOCOL sections 1 and 2. Each refusal is VALIDATION_FAILED with an RFC 6901 pointer for each
thing that is wrong, and changes no row.
"""

import secrets
from typing import Any
from uuid import UUID

import pytest

from tests.api.helpers import OMIT, assert_problem, envelope_for, nothing_happens, post
from tests.client import RelayClient, base64_of, make_device

A_UUID = "6f8e1c9a-2b4d-4f6a-8c0e-1a3b5c7d9e0f"

#: Text that is no UUID in a text form of RFC 4122.
NO_UUIDS = [
    "",
    "x",
    A_UUID.replace("-", ""),
    "{" + A_UUID + "}",
    "(" + A_UUID + ")",
    A_UUID[:-1],
    A_UUID + "0",
    A_UUID[:-1] + "g",
    " " + A_UUID,
    A_UUID + " ",
    A_UUID + "\n",
    A_UUID + "\x00",
    A_UUID.replace("-", "_"),
    "6f8e1c9a2b4d-4f6a-8c0e-1a3b5c7d9e0f-",
    "uuid:" + A_UUID,
    "urn:" + A_UUID,
    "urn:uuid:" + A_UUID.replace("-", ""),
    "urn:uuid:urn:uuid:" + A_UUID,
    "".join(chr(ord(sign) + 0xFEE0) if sign.isdigit() else sign for sign in A_UUID),
    "\u0661" + A_UUID[1:],
    "\ud800" + A_UUID[1:],
    "%" + A_UUID[1:],
]
NO_TEXTS: list[Any] = [None, True, False, 0, 1, 1.5, [], [A_UUID], {}, {"a": 1}]

#: Text that is no standard base64 with padding of at least one byte.
NO_CIPHERTEXTS = {
    "empty": "",
    "padding alone": "====",
    "unpadded": "YQ",
    "half padded": "YQ=",
    "padded too much": "YQ===",
    "padded for nothing by one": "YWJj=",
    "padded for nothing by two": "YWJj==",
    "padded for nothing by four": "YWJj====",
    "padding inside": "YQ==YQ==",
    "one sign": "Y",
    "five signs": "YWJjZ",
    "base64url": base64_of(b"\xfb\xff\xfe").replace("+", "-").replace("/", "_"),
    "white space inside": "YWJj YWJj",
    "a newline inside": "YWJj\nYWJj",
    "a newline behind": "YWJj\n",
    "white space before": " YWJj",
    "CR LF": "YWJj\r\nYWJj",
    "other signs": "YW!j",
    "NUL": "YWJj\x00",
    "not ASCII": "YWJé",
    "full-width": "\uff39WJj",
    "a lone surrogate": "YWJ\ud800",
    "spare bits set": "YR==",
    "a data URL": "data:;base64,YWJj",
    "hexadecimal of odd length": "616",
}

NO_INTEGERS: list[Any] = [None, True, False, "1", "", 1.0, 1.5, 1e2, [], [1], {}]


WRONG: dict[str, list[Any]] = {
    "recipient_device_id": [OMIT, *NO_TEXTS, *NO_UUIDS],
    "message_id": [OMIT, *NO_TEXTS, *NO_UUIDS],
    "protocol_version": [OMIT, *NO_INTEGERS, 0, -1, 256, 2**31, 2**63, -(2**70)],
    "ciphertext": [OMIT, *NO_TEXTS],
    "ttl_seconds": NO_INTEGERS,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_a_submit_that_is_missing_or_of_the_wrong_type_or_form_is_named(
    relay: RelayClient, name: str
) -> None:
    device = make_device()
    with nothing_happens(relay):
        for value in WRONG[name]:
            answer = post(relay, device, envelope_for(device, **{name: value}))
            assert_problem(answer, "VALIDATION_FAILED", pointers={f"/{name}"})


@pytest.mark.parametrize("kind", NO_CIPHERTEXTS)
def test_a_ciphertext_that_is_no_standard_base64_with_padding_is_named(
    relay: RelayClient, kind: str
) -> None:
    device = make_device()
    with nothing_happens(relay):
        answer = post(relay, device, envelope_for(device, ciphertext=NO_CIPHERTEXTS[kind]))
        assert_problem(answer, "VALIDATION_FAILED", pointers={"/ciphertext"})


def test_every_field_that_is_wrong_is_named_at_once(relay: RelayClient) -> None:
    device = make_device()
    body = {"recipient_device_id": 1, "message_id": "x", "protocol_version": 0, "ttl_seconds": "1"}
    with nothing_happens(relay):
        answer = post(relay, device, body)
        pointers = {f"/{name}" for name in [*body, "ciphertext"]}
        assert_problem(answer, "VALIDATION_FAILED", pointers=pointers)


# --- Unknown members --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ttl_second", "TTL_SECONDS", "", "sender", "ttl_seconds ", "id"])
def test_a_member_that_is_not_known_is_refused_and_named(relay: RelayClient, name: str) -> None:
    device = make_device()
    with nothing_happens(relay):
        answer = post(relay, device, envelope_for(device, **{name: 60}))
        assert_problem(answer, "VALIDATION_FAILED", pointers={f"/{name}"})


def test_a_misspelt_member_is_named_beside_the_one_that_is_missing(relay: RelayClient) -> None:
    device = make_device()
    body = envelope_for(device, ciphertext=OMIT, ciphertxt="YQ==", message_id="x")
    with nothing_happens(relay):
        answer = post(relay, device, body)
        expected = {"/ciphertext", "/ciphertxt", "/message_id"}
        assert_problem(answer, "VALIDATION_FAILED", pointers=expected)


@pytest.mark.parametrize(
    ("name", "pointer"), [("a/b", "/a~1b"), ("a~b", "/a~0b"), ("~1", "/~01"), ("/", "/~1")]
)
def test_the_pointer_to_a_member_is_escaped(relay: RelayClient, name: str, pointer: str) -> None:
    device = make_device()
    answer = post(relay, device, envelope_for(device, **{name: 60}))
    assert_problem(answer, "VALIDATION_FAILED", pointers={pointer})


@pytest.mark.parametrize("name", ["\ud800", "\x00", "\u2028<script>", "é", "non_field_errors"])
def test_a_member_of_a_strange_name_is_refused(relay: RelayClient, name: str) -> None:
    device = make_device()
    with nothing_happens(relay):
        answer = post(relay, device, envelope_for(device, **{name: 60}))
        assert_problem(answer, "VALIDATION_FAILED")
        answer.content.decode("ascii")


def test_what_is_echoed_has_a_bound_and_never_a_value(relay: RelayClient) -> None:
    device, secret = make_device(), secrets.token_hex(16)
    bodies = [
        envelope_for(device, **{"n" * 2**20: secret}),
        envelope_for(device, **{f"n{number}": secret for number in range(9_000)}),
        envelope_for(device, ciphertext=secret + "!"),
        envelope_for(device, message_id=secret, protocol_version=secret, ttl_seconds=secret),
        envelope_for(device, recipient_device_id=[secret] * 1000),
    ]
    with nothing_happens(relay):
        for body in bodies:
            answer = post(relay, device, body)
            assert_problem(answer, "VALIDATION_FAILED")
            assert len(answer.content) < 16_384
            assert secret not in answer.text
            assert len(str(answer.headers)) < 2_048


# --- Forms that are taken ---------------------------------------------------------------------

FORMS = [
    A_UUID,
    A_UUID.upper(),
    "6F8e1C9a-2b4D-4f6A-8c0e-1a3b5c7d9e0F",
    "urn:uuid:" + A_UUID,
    "URN:UUID:" + A_UUID.upper(),
]


def test_every_text_form_of_a_uuid_names_the_same_message(relay: RelayClient) -> None:
    device = make_device()
    for number, form in enumerate(FORMS):
        answer = post(relay, device, envelope_for(device, message_id=form))
        assert answer.status_code == (201 if number == 0 else 200)
        assert answer.json()["message_id"] == A_UUID
    assert [each["message_id"] for each in relay.walk(device)] == [A_UUID]
    answer = post(relay, device, {"message_ids": FORMS}, path="/v1/acks")
    assert answer.json()["results"] == [{"message_id": A_UUID, "status": "acknowledged"}] * 5


def test_every_text_form_of_a_uuid_names_the_same_recipient(relay: RelayClient) -> None:
    device = make_device()
    forms = [str(device.id), str(device.id).upper(), device.id.urn, device.id.urn.upper()]
    for form in forms:
        assert post(relay, device, envelope_for(device.id, recipient_device_id=form)).is_success
    assert len(relay.walk(device)) == len(forms)


@pytest.mark.parametrize("number", [0, 2**128 - 1])
def test_the_nil_and_the_max_uuid_are_uuids(relay: RelayClient, number: int) -> None:
    device, message_id = make_device(), UUID(int=number)
    assert relay.submit(device, device, message_id=message_id).status_code == 201
    assert relay.walk(device)[0]["message_id"] == str(message_id)


@pytest.mark.parametrize("ttl", [604_801, 2**31, 2**63, 2**64, 10**30, 10**4000])
def test_a_ttl_above_the_maximum_is_cut_however_large(relay: RelayClient, ttl: int) -> None:
    device = make_device()
    answer = relay.submit(device, device, ttl_seconds=ttl)
    assert (answer.status_code, answer.json()["ttl_seconds"]) == (201, 604_800)


@pytest.mark.parametrize("ttl", [59, 1, 0, -1, -(2**31), -(2**63) - 1, -(10**30)])
def test_a_ttl_below_the_minimum_is_out_of_range(relay: RelayClient, ttl: int) -> None:
    device = make_device()
    with nothing_happens(relay):
        assert_problem(relay.submit(device, device, ttl_seconds=ttl), "TTL_OUT_OF_RANGE")
