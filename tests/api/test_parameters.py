"""Lists, digests, path and query parameters of other forms (PROTOCOL sections 1, 3, 4 and 6)."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.api.helpers import OMIT, assert_problem, envelope_for, nothing_happens, post, untouched
from tests.client import RelayClient, base64_of, make_device, make_provisioner

A_UUID = "6f8e1c9a-2b4d-4f6a-8c0e-1a3b5c7d9e0f"
HEX = "0123456789abcdef" * 4

# --- Acknowledgements -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, {"/message_ids"}),
        ({"message_ids": []}, {"/message_ids"}),
        ({"message_ids": [A_UUID] * 101}, {"/message_ids"}),
        *[({"message_ids": value}, {"/message_ids"}) for value in (None, 1, True, A_UUID, {}, "")],
        ({"message_ids": {"0": A_UUID}}, {"/message_ids"}),
        ({"message_ids": [A_UUID, "x", A_UUID, 5]}, {"/message_ids/1", "/message_ids/3"}),
        *[({"message_ids": [value]}, {"/message_ids/0"}) for value in (None, 1, True, [], {}, "")],
        ({"message_ids": [A_UUID], "message_id": A_UUID}, {"/message_id"}),
        ({"message_ids": [A_UUID], "device_id": A_UUID}, {"/device_id"}),
    ],
)
def test_an_acknowledgement_of_another_shape_is_refused_as_a_whole(
    relay: RelayClient, body: dict[str, Any], pointers: set[str]
) -> None:
    device = make_device()
    relay.submit(device, device, message_id=UUID(A_UUID)).raise_for_status()
    with nothing_happens(relay):
        answer = post(relay, device, body, path="/v1/acks")
        assert_problem(answer, "VALIDATION_FAILED", pointers=pointers)


# --- Devices ----------------------------------------------------------------------------------

NO_DIGESTS: list[Any] = [
    *(None, True, 0, int("1" * 64), 1.5, [], ["0" * 64], {}),
    *(
        "",
        "0" * 63,
        "0" * 65,
        "0" * 128,
        "g" * 64,
        " " + "0" * 64,
        "0" * 64 + "\n",
        "0x" + "0" * 62,
    ),
    *("-" + "0" * 63, "\u0660" * 64, "\uff10" * 64, base64_of(b"x" * 32)),
]


def test_a_digest_that_is_not_64_hexadecimal_digits_is_named(relay: RelayClient) -> None:
    provisioner = make_provisioner()
    with nothing_happens(relay):
        for value in [OMIT, *NO_DIGESTS]:
            body = {} if value is OMIT else {"token_sha256": value}
            path = f"/v1/devices/{uuid4()}"
            answer = relay.call("PUT", path, provisioner, json=body)
            assert_problem(answer, "VALIDATION_FAILED", pointers={"/token_sha256"})
        answer = relay.call("PUT", path, provisioner, json={"token_sha256": HEX, "state": "active"})
        assert_problem(answer, "VALIDATION_FAILED", pointers={"/state"})


@pytest.mark.parametrize("text", ["x", A_UUID[:-1], A_UUID.replace("-", ""), "{" + A_UUID + "}"])
def test_a_device_id_in_the_path_that_is_no_uuid_is_named(relay: RelayClient, text: str) -> None:
    provisioner = make_provisioner()
    with untouched():
        put = relay.call("PUT", f"/v1/devices/{text}", provisioner, json={"token_sha256": HEX})
        delete = relay.call("DELETE", f"/v1/devices/{text}", provisioner)
    for answer in (put, delete):
        assert_problem(answer, "VALIDATION_FAILED", pointers={"/device_id"})


# --- Query parameters -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        *("0", "101", "-1", "", "abc", "1.0", "1.5", "1e1", "+5", " 5", "5 ", "0x10", "\u0665"),
        *("1000", "9" * 5000, "true", "null", "5,6", "5;6", "\x00", "\ufffd"),
    ],
)
def test_a_limit_that_is_not_1_to_100_is_named(relay: RelayClient, limit: str) -> None:
    answer = relay.pull(make_device(), limit=limit)
    assert_problem(answer, "VALIDATION_FAILED", pointers={"/limit"})


@pytest.mark.parametrize(
    ("method", "path", "pointers"),
    [
        ("GET", "/v1/envelopes?limits=5", {"/limits"}),
        ("GET", "/v1/envelopes?Limit=5", {"/Limit"}),
        ("GET", "/v1/envelopes?after=1&limit=5&x", {"/after", "/x"}),
        ("GET", "/v1/envelopes?limit=5&limit=5", {"/limit"}),
        ("GET", "/v1/envelopes?limit=5&limit=6&page=1", {"/limit", "/page"}),
        ("GET", "/v1/envelopes?cursor=a&cursor=b", {"/cursor"}),
        ("GET", "/v1/envelopes?a/b=1", {"/a~1b"}),
        ("GET", "/v1/device?limit=5", {"/limit"}),
        ("GET", "/v1/instance?verbose=1", {"/verbose"}),
        ("POST", "/v1/envelopes?limit=5", {"/limit"}),
        ("POST", "/v1/acks?dry_run=1", {"/dry_run"}),
    ],
)
def test_a_query_parameter_that_is_unknown_or_there_twice_is_named(
    relay: RelayClient, method: str, path: str, pointers: set[str]
) -> None:
    device = make_device()
    body = {"message_ids": [A_UUID]} if "acks" in path else envelope_for(device)
    with nothing_happens(relay):
        options = {"json": body, "headers": {"Idempotency-Key": "k"}} if method == "POST" else {}
        answer = relay.call(method, path, device, **options)
        assert_problem(answer, "VALIDATION_FAILED", pointers=pointers)


@pytest.mark.parametrize("count", [60, 1_001, 3_000])
def test_however_many_unknown_query_parameters_are_a_bad_request(
    relay: RelayClient, count: int
) -> None:
    query = "&".join(f"a{number}" for number in range(count))
    for path in ("/v1/envelopes", "/v1/instance"):
        answer = relay.call("GET", f"{path}?{query}", make_device())
        assert answer.status_code == 400
        assert answer.json()["code"] in ("VALIDATION_FAILED", "MALFORMED_REQUEST")
        assert len(answer.content) < 16_384
