"""Who is let in, and where (PROTOCOL section 1)."""

import base64
import re
import secrets
from collections.abc import Callable
from hashlib import sha256
from uuid import UUID, uuid4

import httpx
import pytest

from relay.models import Provisioner
from tests.api.helpers import (
    assert_problem,
    envelope_for,
    exchange,
    post,
    raw_head,
    untouched,
    without_request_id,
)
from tests.client import Party, RelayClient, make_device, make_provisioner

NOBODY = UUID("00000000-0000-4000-8000-000000000000")

#: (method, path, who may): every call that needs a token.
CALLS = [
    ("GET", "/v1/envelopes", "device"),
    ("POST", "/v1/envelopes", "either"),
    ("POST", "/v1/acks", "device"),
    ("GET", "/v1/device", "device"),
    ("PUT", f"/v1/devices/{NOBODY}", "provisioner"),
    ("DELETE", f"/v1/devices/{NOBODY}", "provisioner"),
]


def _secret(party: Party) -> str:
    return party.token.split(".")[2]


def _bytes(party: Party) -> bytes:
    return base64.urlsafe_b64decode(_secret(party) + "=")


def _b64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _spare_bits(party: Party) -> str:
    """The same 32 bytes, but with the spare bits of the last character set."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return party.token[:-1] + alphabet[alphabet.index(party.token[-1]) + 1]


def _with_slash() -> str:
    """A secret that the two alphabets of base64 spell differently."""
    return base64.b64encode(b"\xff" * 32).rstrip(b"=").decode()


BAD: dict[str, Callable[[Party, Party], str | None]] = {
    "no header": lambda device, other: None,
    "empty header": lambda device, other: "",
    "scheme alone": lambda device, other: "Bearer",
    "token without a scheme": lambda device, other: device.token,
    "another scheme": lambda device, other: f"Basic {device.token}",
    "a scheme run together": lambda device, other: f"Bearer{device.token}",
    "wrong secret": lambda device, other: f"Bearer rld1.{device.id}.{secrets.token_urlsafe(32)}",
    "another device's secret": lambda device, other: f"Bearer rld1.{device.id}.{_secret(other)}",
    "unknown device": lambda device, other: f"Bearer rld1.{uuid4()}.{_secret(device)}",
    "a device as provisioner": lambda device, other: f"Bearer rlp1.{device.id}.{_secret(device)}",
    "an unknown kind": lambda device, other: f"Bearer rld2.{device.id}.{_secret(device)}",
    "kind in capitals": lambda device, other: f"Bearer RLD1.{device.id}.{_secret(device)}",
    "padded secret": lambda device, other: f"Bearer {device.token}=",
    "standard alphabet": lambda device, other: f"Bearer rld1.{device.id}.{_with_slash()}",
    "31 bytes": lambda device, other: f"Bearer rld1.{device.id}.{_b64url(_bytes(device)[:31])}",
    "33 bytes": lambda device, other: f"Bearer rld1.{device.id}.{_b64url(_bytes(device) + b'x')}",
    "spare bits": lambda device, other: f"Bearer {_spare_bits(device)}",
    "hexadecimal secret": lambda device, other: f"Bearer rld1.{device.id}.{_bytes(device).hex()}",
    "no secret": lambda device, other: f"Bearer rld1.{device.id}.",
    "two parts": lambda device, other: f"Bearer rld1.{device.id}",
    "four parts": lambda device, other: f"Bearer {device.token}.x",
    "an id that is none": lambda device, other: f"Bearer rld1.me.{_secret(device)}",
    "two tokens": lambda device, other: f"Bearer {device.token}, Bearer {other.token}",
    "something behind": lambda device, other: f"Bearer {device.token} x",
    "very long": lambda device, other: f"Bearer {device.token}{'A' * 10_000}",
    "only dots": lambda device, other: "Bearer ..",
    "not ASCII": lambda device, other: f"Bearer rld1.{device.id}.{'é' * 43}",
}


def _answer(relay: RelayClient, method: str, path: str, header: str | None) -> httpx.Response:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    return relay.http.request(method, path, headers=headers)


def _assert_the_one_401(response: httpx.Response) -> None:
    assert_problem(response, "UNAUTHENTICATED")
    assert response.headers["www-authenticate"].startswith("Bearer")


def _all_but_its_own(response: httpx.Response) -> tuple[object, object]:
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in ("date", "x-request-id")
    }
    return without_request_id(response), headers


@pytest.mark.parametrize("wrong", BAD)
def test_whatever_is_wrong_with_a_token_the_401_is_one_and_the_same(
    relay: RelayClient, wrong: str
) -> None:
    device, other = make_device(), make_device()
    refused = _answer(relay, "GET", "/v1/device", BAD[wrong](device, other))
    _assert_the_one_401(refused)
    plain = _answer(relay, "GET", "/v1/device", None)
    assert _all_but_its_own(refused) == _all_but_its_own(plain)


def test_a_disabled_a_replaced_and_a_revoked_token_get_the_same_401(relay: RelayClient) -> None:
    provisioner, revoked = make_provisioner(), make_provisioner()
    disabled, rotated = make_device(), make_device()
    relay.call("DELETE", f"/v1/devices/{disabled.id}", provisioner).raise_for_status()
    digest = {"token_sha256": secrets.token_hex(32)}
    relay.call("PUT", f"/v1/devices/{rotated.id}", provisioner, json=digest).raise_for_status()
    Provisioner.objects.filter(provisioner_id=revoked.id).update(revoked_at="2026-01-01T00:00Z")
    plain = _answer(relay, "GET", "/v1/device", None)
    for gone in (disabled, rotated, revoked):
        answer = relay.device(gone)
        _assert_the_one_401(answer)
        assert _all_but_its_own(answer) == _all_but_its_own(plain)


@pytest.mark.parametrize(("method", "path", "who"), CALLS)
def test_every_call_but_the_instance_needs_a_token(
    relay: RelayClient, method: str, path: str, who: str
) -> None:
    with untouched():
        for header in (None, f"Bearer rld1.{NOBODY}.{'A' * 43}"):
            _assert_the_one_401(_answer(relay, method, path, header))


@pytest.mark.parametrize(("method", "path", "who"), CALLS)
def test_a_valid_caller_of_the_wrong_kind_is_forbidden(
    relay: RelayClient, method: str, path: str, who: str
) -> None:
    wrong = {"device": [make_provisioner()], "provisioner": [make_device()], "either": []}[who]
    with untouched():
        for caller in wrong:
            assert_problem(relay.call(method, path, caller), "FORBIDDEN")


@pytest.mark.parametrize("make", [make_device, make_provisioner])
def test_devices_and_provisioners_may_submit(relay: RelayClient, make: Callable[[], Party]) -> None:
    assert relay.submit(make(), make_device()).status_code == 201


@pytest.mark.parametrize("header", [None, "Bearer nonsense", "Basic eDp5"])
def test_the_instance_document_is_for_anyone(relay: RelayClient, header: str | None) -> None:
    assert _answer(relay, "GET", "/v1/instance", header).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_known_in_any_case_of_letters(relay: RelayClient, scheme: str) -> None:
    device = make_device()
    assert _answer(relay, "GET", "/v1/device", f"{scheme} {device.token}").status_code == 200


def test_the_server_knows_the_digest_of_the_32_bytes_and_not_of_their_text(
    relay: RelayClient,
) -> None:
    provisioner, device_id, secret = make_provisioner(), uuid4(), secrets.token_bytes(32)
    text = _b64url(secret)
    path, device = f"/v1/devices/{device_id}", Party(device_id, f"rld1.{device_id}.{text}")
    of_text = {"token_sha256": sha256(text.encode()).hexdigest()}
    assert relay.call("PUT", path, provisioner, json=of_text).status_code == 201
    _assert_the_one_401(relay.device(device))
    of_bytes = {"token_sha256": sha256(secret).hexdigest()}
    assert relay.call("PUT", path, provisioner, json=of_bytes).status_code == 200
    assert relay.device(device).status_code == 200


def test_a_device_and_a_provisioner_of_one_uuid_are_two_callers(relay: RelayClient) -> None:
    device, provisioner = make_device(), make_provisioner()
    Provisioner.objects.filter(provisioner_id=provisioner.id).update(provisioner_id=device.id)
    twin = Party(device.id, f"rlp1.{device.id}.{_secret(provisioner)}")
    assert relay.device(device).status_code == 200
    assert_problem(relay.device(twin), "FORBIDDEN")
    _assert_the_one_401(relay.device(Party(device.id, f"rld1.{device.id}.{_secret(twin)}")))


def test_two_authorization_headers_never_let_a_caller_in_as_the_second(
    relay: RelayClient,
) -> None:
    good, bad = make_device(), Party(NOBODY, f"rld1.{NOBODY}.{'A' * 43}")
    line = f"Authorization: Bearer {good.token}"
    answer = exchange(relay.url, raw_head(bad, line, method="GET", path="/v1/device"))
    assert answer is not None
    assert answer.status_code in (400, 401)


# --- X-Request-ID -----------------------------------------------------------------------------

_OURS = re.compile(r"[A-Za-z0-9._-]{1,64}")


@pytest.mark.parametrize("given", ["a", "A-Za-z0-9._-", "." * 64, str(NOBODY), "0" * 64])
def test_a_request_id_of_the_form_is_kept(relay: RelayClient, given: str) -> None:
    answer = relay.http.get("/v1/instance", headers={"X-Request-ID": given})
    assert answer.headers["x-request-id"] == given
    refused = relay.http.get("/v1/device", headers={"X-Request-ID": given})
    assert assert_problem(refused, "UNAUTHENTICATED")["request_id"] == given


@pytest.mark.parametrize(
    "given", ["", "a" * 65, "a b", "a/b", "a,b", "a:b", "<b>", "\u00e9", "a\tb", "${x}", "a" * 5000]
)
def test_a_request_id_not_of_the_form_is_replaced(relay: RelayClient, given: str) -> None:
    header = {"X-Request-ID": given.encode("latin-1")}
    answers = [relay.http.get("/v1/device", headers=header) for _ in range(2)]
    ids = [assert_problem(answer, "UNAUTHENTICATED")["request_id"] for answer in answers]
    assert all(_OURS.fullmatch(each) for each in ids)
    assert len({*ids, given}) == 3


def test_every_response_carries_a_request_id(relay: RelayClient) -> None:
    device, provisioner = make_device(), make_provisioner()
    answers = [
        relay.submit(device, device),
        relay.pull(device),
        relay.acknowledge(device, [uuid4()]),
        relay.call("DELETE", f"/v1/devices/{uuid4()}", provisioner),
        relay.submit(device, uuid4()),
        post(relay, device, b"{"),
        post(relay, device, envelope_for(device), path="/v1/nowhere"),
        *(relay.http.get(path) for path in ("/v1/instance", "/livez", "/readyz", "/metrics")),
        *(relay.http.get(path) for path in ("/api/schema/", "/api/docs/", "/admin/", "/x")),
        relay.http.request("PATCH", "/v1/envelopes"),
    ]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert all(_OURS.fullmatch(each) for each in ids)
    assert len(set(ids)) == len(answers)
