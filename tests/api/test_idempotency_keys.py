"""The forms of an Idempotency-Key (PROTOCOL section 1)."""

import json
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.api.helpers import (
    JSON,
    answered,
    assert_problem,
    envelope_for,
    exchange,
    nothing_happens,
    query,
    raw_head,
    untouched,
)
from tests.client import Party, RelayClient, make_device, make_provisioner

REPLAYED = "idempotency-replayed"


# --- Forms ------------------------------------------------------------------------------------


def _submit_under(relay: RelayClient, device: Party, body: Any, header: bytes) -> httpx.Response:
    headers = {**JSON, "Idempotency-Key": header}
    return relay.call("POST", "/v1/envelopes", device, json=body, headers=headers)


@pytest.mark.parametrize(
    "key",
    [
        *("a", "a" * 255, "a b", "~!@#$%^&*()_+-=[]{}|;':,./<>?`", "0", "null", "a\\b", 'a"b'),
        "".join(chr(code) for code in range(0x23, 0x7F)),
        str(UUID(int=5)),
    ],
)
def test_a_key_is_1_to_255_printable_characters_and_the_quoted_form_names_the_same(
    relay: RelayClient, key: str
) -> None:
    device = make_device()
    body = envelope_for(device)
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    first = _submit_under(relay, device, body, key.encode())
    assert first.status_code == 201
    for spelling in (key, quoted):
        again = _submit_under(relay, device, body, spelling.encode())
        assert (again.content, again.headers.get(REPLAYED)) == (first.content, "true")


def test_keys_that_differ_in_anything_are_other_keys(relay: RelayClient) -> None:
    device = make_device()
    for key in ("a", "A", "a ~", "a  ~", "aa", "a" * 254, "a" * 255, "a=", "'a'"):
        answer = _submit_under(relay, device, envelope_for(device), key.encode())
        assert (answer.status_code, REPLAYED in answer.headers) == (201, False)


INVALID = {
    "empty": b"",
    "empty, quoted": b'""',
    "256 characters": b"a" * 256,
    "256 characters, quoted": b'"' + b"a" * 256 + b'"',
    "10,000 characters": b"a" * 10_000,
    "one quote": b'"',
    "an open quote": b'"abc',
    "a quote inside quotes": b'"a"b"',
    "an escape of a letter": b'"a\\n"',
    "an escape of nothing": b'"a\\"',
    "something behind the quotes": b'"a"b',
    "two in one header": b'"a", "b"',
    "a tab": b"a\tb",
    "a tab in quotes": b'"a\tb"',
    "latin-1": b"caf\xe9",
    "latin-1 in quotes": b'"caf\xe9"',
    "UTF-8": "schlüssel".encode(),
    "a no-break space": b"a\xa0b",
}


@pytest.mark.parametrize("kind", INVALID)
def test_a_key_of_another_form_is_refused_on_every_write(relay: RelayClient, kind: str) -> None:
    device, provisioner, path = make_device(), make_provisioner(), f"/v1/devices/{uuid4()}"
    headers = {"Idempotency-Key": INVALID[kind]}
    digest = {"token_sha256": "ab" * 32}
    with nothing_happens(relay):
        for answer in (
            _submit_under(relay, device, envelope_for(device), INVALID[kind]),
            relay.call(
                "POST", "/v1/acks", device, json={"message_ids": [str(uuid4())]}, headers=headers
            ),
            relay.call("PUT", path, provisioner, json=digest, headers=headers),
            relay.call("DELETE", path, provisioner, headers=headers),
        ):
            assert_problem(answer, "IDEMPOTENCY_KEY_INVALID")


@pytest.mark.parametrize("code", [*range(9), *range(10, 32), 127])
def test_a_key_with_a_control_character_is_a_bad_request(relay: RelayClient, code: int) -> None:
    device = make_device()
    body = b"{}"
    key = b"Idempotency-Key: a" + bytes([code]) + b"b"
    head = raw_head(device, key, "Content-Type: application/json", f"Content-Length: {len(body)}")
    with nothing_happens(relay):
        answer = exchange(relay.url, head, body)
        assert answer is None or answer.status_code == 400


def _raw(relay: RelayClient, device: Party, body: Any, *keys: str) -> httpx.Response:
    content = json.dumps(body).encode()
    lines = [f"Idempotency-Key:{key}" for key in keys]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return answered(exchange(relay.url, raw_head(device, *lines), content))


def test_white_space_around_a_key_does_not_count(relay: RelayClient) -> None:
    device = make_device()
    body = envelope_for(device)
    first = _raw(relay, device, body, "k")
    for spelling in (" k", "  k  ", "\tk\t", ' "k" '):
        again = _raw(relay, device, body, spelling)
        assert (again.content, again.headers.get(REPLAYED)) == (first.content, "true")
    assert_problem(_raw(relay, device, body, "   "), "IDEMPOTENCY_KEY_INVALID")


def test_two_keys_stand_for_neither_of_them(relay: RelayClient) -> None:
    device = make_device()
    for key in ("a", "b"):
        _raw(relay, device, envelope_for(device), key)
    answer = _raw(relay, device, envelope_for(device), "a", "b")
    assert answer.status_code in (201, 400)  # joined to one key of their own, or refused
    assert REPLAYED not in answer.headers


def test_only_a_submit_needs_a_key(relay: RelayClient) -> None:
    device, provisioner, path = make_device(), make_provisioner(), f"/v1/devices/{uuid4()}"
    with untouched():
        missing = relay.call("POST", "/v1/envelopes", device, json=envelope_for(device))
        assert_problem(missing, "IDEMPOTENCY_KEY_MISSING")
    answers = [
        relay.acknowledge(device, [uuid4()]),
        relay.call("PUT", path, provisioner, json={"token_sha256": "ab" * 32}),
        relay.call("DELETE", path, provisioner),
    ]
    assert [answer.status_code for answer in answers] == [200, 201, 202]
    assert query("SELECT count(*) FROM idempotency_record") == [(0,)]


def test_a_key_on_a_read_means_nothing(relay: RelayClient) -> None:
    device = make_device()
    with untouched():
        for path in ("/v1/envelopes", "/v1/device", "/v1/instance"):
            headers = {"Idempotency-Key": '"'}
            assert relay.call("GET", path, device, headers=headers).status_code == 200
