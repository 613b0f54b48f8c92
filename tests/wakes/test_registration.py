"""Registering how a device is woken, over HTTP (PROTOCOL section 6)."""

import json
from typing import Any
from uuid import uuid4

import httpx
import pytest
from django.db import connection

from relay.api import examples
from relay.models import Device
from relay.wakes import endpoints
from relay.wakes.registrations import Gateway, SealedShutError, WebPush, key_id_of, seal, unseal
from tests.client import Party, RelayClient, make_device, make_provisioner, new_key
from tests.conftest import RelayProcess
from tests.wakes.conftest import Wiring
from tests.wakes.subscriber import Subscriber, encode

ENDPOINT = "https://push.example.net/wpush/v2/gAAAAABl5c2V"
GATEWAY = {"transport": "gateway", "handle": "opaque"}


def put(relay: RelayClient, device: Party, body: Any, **options: Any) -> httpx.Response:
    return relay.call("PUT", "/v1/device/wake", device, json=body, **options)


def delete(relay: RelayClient, device: Party, **options: Any) -> httpx.Response:
    return relay.call("DELETE", "/v1/device/wake", device, **options)


def shown(relay: RelayClient, device: Party) -> Any:
    return relay.device(device).json()["wake"]


def test_a_device_registers_either_way_and_forgets(relay: RelayClient) -> None:
    device, other = make_device(), make_device()
    assert shown(relay, device) is None
    answer = put(relay, device, Subscriber().body(ENDPOINT))
    assert (answer.status_code, answer.json()) == (200, {"transport": "webpush"})
    assert shown(relay, device) == {"transport": "webpush"}
    answer = put(relay, device, GATEWAY)
    assert (answer.status_code, answer.json()) == (200, {"transport": "gateway"})
    assert shown(relay, device) == {"transport": "gateway"}
    assert shown(relay, other) is None
    for _ in range(2):
        answer = delete(relay, device)
        assert (answer.status_code, answer.content) == (204, b"")
        assert "Content-Type" not in answer.headers
        assert shown(relay, device) is None


def test_the_examples_of_the_schema_are_taken(relay: RelayClient) -> None:
    device = make_device()
    assert put(relay, device, examples.WAKE_WEBPUSH).json() == examples.WAKE_REGISTERED
    assert put(relay, device, examples.WAKE_GATEWAY).status_code == 200


def test_only_a_device_has_a_wake(relay: RelayClient) -> None:
    provisioner = make_provisioner()
    assert put(relay, provisioner, GATEWAY).json()["code"] == "FORBIDDEN"
    assert delete(relay, provisioner).json()["code"] == "FORBIDDEN"
    assert relay.call("PUT", "/v1/device/wake", json=GATEWAY).status_code == 401
    answer = relay.call("GET", "/v1/device/wake", make_device())
    assert (answer.status_code, answer.headers["Allow"]) == (405, "DELETE, PUT")


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in Subscriber().body(ENDPOINT).items() if key != name}


def changed(**members: Any) -> dict[str, Any]:
    return {**Subscriber().body(ENDPOINT), **members}


OFF_THE_CURVE = encode(b"\x04" + b"\x01" * 64)
COMPRESSED = encode(b"\x02" + Subscriber().p256dh[1:33])
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no transport", without("transport"), "/transport"),
    ("another transport", changed(transport="apns"), "/transport"),
    ("transport not text", changed(transport=1), "/transport"),
    ("transport a list", changed(transport=["webpush"]), "/transport"),
    ("no endpoint", without("endpoint"), "/endpoint"),
    ("no p256dh", without("p256dh"), "/p256dh"),
    ("no auth", without("auth"), "/auth"),
    ("unknown member", changed(ttl=1), "/ttl"),
    ("a member of the other", changed(handle="x"), "/handle"),
    ("a member of the other", {**GATEWAY, "auth": "x"}, "/auth"),
    ("p256dh off the curve", changed(p256dh=OFF_THE_CURVE), "/p256dh"),
    ("p256dh compressed", changed(p256dh=COMPRESSED), "/p256dh"),
    ("p256dh at infinity", changed(p256dh=encode(b"\x04" + b"\x00" * 64)), "/p256dh"),
    ("p256dh padded", changed(p256dh=encode(Subscriber().p256dh) + "="), "/p256dh"),
    ("p256dh standard base64", changed(p256dh="+" * 87), "/p256dh"),
    ("p256dh too long", changed(p256dh=encode(Subscriber().p256dh + b"\0")), "/p256dh"),
    ("p256dh null", changed(p256dh=None), "/p256dh"),
    ("auth too short", changed(auth=encode(b"a" * 15)), "/auth"),
    ("auth too long", changed(auth=encode(b"a" * 17)), "/auth"),
    ("auth not canonical", changed(auth="A" * 21 + "B"), "/auth"),
    ("auth empty", changed(auth=""), "/auth"),
    ("auth not text", changed(auth=16), "/auth"),
    ("no handle", {"transport": "gateway"}, "/handle"),
    ("handle empty", {**GATEWAY, "handle": ""}, "/handle"),
    ("handle too long", {**GATEWAY, "handle": "x" * 513}, "/handle"),
    ("handle not text", {**GATEWAY, "handle": 5}, "/handle"),
    ("handle null", {**GATEWAY, "handle": None}, "/handle"),
    ("handle half a character", {**GATEWAY, "handle": "\ud83d"}, "/handle"),
]


@pytest.mark.parametrize(("what", "body", "pointer"), WRONG, ids=[each[0] for each in WRONG])
def test_what_is_wrong_is_named(
    relay: RelayClient, what: str, body: dict[str, Any], pointer: str
) -> None:
    device = make_device()
    answer = relay.call(
        "PUT",
        "/v1/device/wake",
        device,
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_FAILED")
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert shown(relay, device) is None


@pytest.mark.parametrize("handle", ["x", "x" * 512, " spaces ", "µ☎\U0001f4de\n", "\x00"])
def test_any_text_is_a_handle(relay: RelayClient, handle: str) -> None:
    device = make_device()
    assert put(relay, device, {"transport": "gateway", "handle": handle}).status_code == 200
    row = Device.objects.get(device_id=device.id)
    assert unseal(device_id=device.id, sealed=bytes(row.wake_sealed)) == Gateway(handle)


GOOD_ENDPOINTS = [
    ENDPOINT,
    "https://push.example.net",
    "https://push.example.net/?topic=a&b=%C3%A9",
    "https://push.example.net:443/x",
    "https://ntfy.example.org:8443/up?up=1",
    "https://xn--bcher-kva.example/x",
    "https://93.184.216.34/x",
    "https://[2606:4700::1111]:65535/x",
    "https://push.example.net/" + "x" * (2048 - len("https://push.example.net/")),
]
BAD_ENDPOINTS = [
    ("url", "http://push.example.net/x"),
    ("url", "ftp://push.example.net/x"),
    ("url", "push.example.net/x"),
    ("url", "https:///x"),
    ("url", "https://user@push.example.net/x"),
    ("url", "https://user:word@push.example.net/x"),
    ("url", "https://push.example.net/x#fragment"),
    ("url", "https://push.example.net#"),
    ("url", "https://push.example.net\\@127.0.0.1/"),
    ("url", "https://push.example.net/a b"),
    ("url", "https://push.example.net/\r\nHost: x"),
    ("url", "https://push.example.net/x\n"),
    ("url", "https://push.example.net/%zz"),
    ("url", "https://bücher.example/x"),
    ("url", "https://push.example.net.:443/x"),
    ("url", "https://-push.example.net/x"),
    ("url", "https://push..example.net/x"),
    ("url", "https://" + "a" * 64 + ".example/x"),
    ("url", "https://" + "abcdefgh." * 30 + "example/x"),
    ("url", "https://push.example.net:0/x"),
    ("url", "https://push.example.net:65536/x"),
    ("url", "https://push.example.net:/x"),
    ("url", "https://push.example.net:8443x/"),
    ("url", "https://127.1/x"),
    ("url", "https://2130706433/x"),
    ("url", "https://0x7f000001/x"),
    ("url", "https://0177.0.0.1/x"),
    ("url", "https://127.0.0.0x1/x"),
    ("url", "https://[fe80::1%25eth0]/x"),
    ("url", "https://[127.0.0.1]/x"),
    ("url", "https://[::1/x"),
    ("url", "https://push.example.net/" + "x" * (2049 - len("https://push.example.net/"))),
    ("port", "https://push.example.net:22/x"),
    ("port", "https://push.example.net:80/x"),
    ("port", "https://push.example.net:1023/x"),
    ("address", "https://127.0.0.1/x"),
    ("address", "https://10.1.2.3:8443/x"),
    ("address", "https://169.254.169.254/latest/meta-data/"),
    ("address", "https://[::1]/x"),
    ("address", "https://[::ffff:192.168.0.1]/x"),
    ("address", "https://[fd00:ec2::254]/x"),
]


def test_sane_endpoints_are_taken_and_no_others() -> None:
    assert [each for each in GOOD_ENDPOINTS if endpoints.fault_of(each) is not None] == []
    found = [(endpoints.fault_of(each), each) for _, each in BAD_ENDPOINTS]
    assert found == BAD_ENDPOINTS


@pytest.mark.parametrize("fault", ["url", "port", "address"])
def test_a_bad_endpoint_is_named_but_not_repeated(relay: RelayClient, fault: str) -> None:
    endpoint = next(each for kind, each in BAD_ENDPOINTS if kind == fault)
    answer = put(relay, make_device(), Subscriber().body(endpoint))
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert error["pointer"] == "/endpoint"
    assert endpoint not in answer.text


def test_an_allowed_address_may_be_registered_although_private(wired: Wiring) -> None:
    wired.set(WAKE_EGRESS_ALLOW=["10.1.0.0/16"])
    assert endpoints.fault_of("https://10.1.2.3/x") is None
    assert endpoints.fault_of("https://10.2.2.3/x") == "address"


def test_a_repeat_gets_the_first_answer_and_does_nothing(relay: RelayClient) -> None:
    device, key = make_device(), {"Idempotency-Key": new_key()}
    body = Subscriber().body(ENDPOINT)
    first = put(relay, device, body, headers=key)
    delete(relay, device)
    again = put(relay, device, dict(reversed(body.items())), headers=key)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert shown(relay, device) is None
    reused = put(relay, device, {**body, "auth": encode(b"b" * 16)}, headers=key)
    assert (reused.status_code, reused.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")


def test_a_repeated_delete_does_not_remove_what_came_since(relay: RelayClient) -> None:
    device, key = make_device(), {"Idempotency-Key": new_key()}
    assert delete(relay, device, headers=key).status_code == 204
    put(relay, device, GATEWAY)
    again = delete(relay, device, headers=key)
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (204, "true")
    assert shown(relay, device) == {"transport": "gateway"}


def test_disabling_a_device_forgets_its_registration(relay: RelayClient) -> None:
    device = make_device()
    put(relay, device, GATEWAY)
    relay.call("DELETE", f"/v1/devices/{device.id}", make_provisioner())
    row = Device.objects.get(device_id=device.id)
    assert (row.wake_transport, row.wake_sealed) == (None, None)


def everything_stored() -> str:
    """Every row of the database as text; bytes are in hexadecimal there."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        tables = [name for (name,) in cursor.fetchall()]
        texts = []
        for table in tables:
            cursor.execute(f"SELECT each::text FROM {table} AS each")
            texts += [text for (text,) in cursor.fetchall()]
    return "\n".join(texts)


def test_nothing_of_a_registration_lies_open(
    relay: RelayClient, relay_process: RelayProcess
) -> None:
    subscriber, handle = Subscriber(), "canary-handle"
    endpoint = "https://canary-push.example.net/canary-path"
    body, keyed = subscriber.body(endpoint), {"Idempotency-Key": new_key()}
    put(relay, make_device(), body, headers=keyed).raise_for_status()
    put(relay, make_device(), {"transport": "gateway", "handle": handle}).raise_for_status()
    refused = put(relay, make_device(), {"transport": "gateway", "handle": handle, "x": 1})
    assert refused.status_code == 400
    texts = ["canary", body["p256dh"], body["auth"]]
    raws = [b"canary", subscriber.p256dh, subscriber.auth, *(text.encode() for text in texts)]
    stored, logged = everything_stored(), relay_process.log.read_text()
    assert stored.count("webpush") == 2  # the column, and the answer under the key
    assert "PUT" in logged  # the refused one has its line
    assert [text for text in texts if text in stored or text in logged] == []
    assert [raw for raw in raws if raw.hex() in stored] == []


def test_a_registration_opens_for_its_own_device_only() -> None:
    device_id, registration = uuid4(), WebPush(ENDPOINT, Subscriber().p256dh, b"a" * 16)
    sealed = seal(device_id=device_id, registration=registration)
    assert unseal(device_id=device_id, sealed=sealed) == registration
    assert (sealed[0], key_id_of(sealed)) == (1, 0)
    assert seal(device_id=device_id, registration=registration) != sealed
    with pytest.raises(SealedShutError):
        unseal(device_id=uuid4(), sealed=sealed)
    for changed_byte in (0, 1, 2, len(sealed) - 1):
        broken = bytearray(sealed)
        broken[changed_byte] ^= 1
        with pytest.raises(SealedShutError):
            unseal(device_id=device_id, sealed=bytes(broken))


def test_a_registration_shows_nothing_of_itself_in_a_traceback() -> None:
    assert "canary" not in repr(WebPush("https://canary.example", b"canary", b"canary"))
    assert "canary" not in repr(Gateway("canary"))
