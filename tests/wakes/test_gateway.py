"""Wakes through the deployment's own gateway (PROTOCOL section 7)."""

import hmac
import json
from datetime import UTC, datetime
from hashlib import sha256

import pytest

from outbox.topics import Disposition, Settlement
from relay.models import Device
from relay.wakes.codes import Code
from relay.wakes.handler import handle
from relay.wakes.verdicts import wait_of
from tests.conftest import DatabaseClock
from tests.wakes.authority import Authority
from tests.wakes.conftest import SECRET, Wiring, event, gateway_device
from tests.wakes.servers import Answer, Flood, HttpServer, RawServer, Received, drip, hang, reset


def verified(received: Received, secret: str = SECRET) -> int:
    """The time of a request whose signature is good, worked out as the protocol says."""
    parts = dict(part.split("=", 1) for part in received.headers["relay-signature"].split(","))
    signed = f"{parts['t']}.".encode() + received.body
    assert parts["v1"] == hmac.new(secret.encode("utf-8"), signed, sha256).hexdigest()
    return int(parts["t"])


def test_the_gateway_gets_a_signed_handle(
    wired: Wiring, gateway: HttpServer, clock: DatabaseClock
) -> None:
    wired.use_gateway(gateway.url("/wake?app=1"))
    clock.freeze("2026-12-01T09:30:00Z")
    device_id = gateway_device("a handle, µ")
    arrived = event(device_id)
    assert handle([arrived], 20) == {arrived.event_id: Settlement(Disposition.DONE, Code.SENT)}
    [received] = gateway.received
    assert (received.method, received.path) == ("POST", "/wake?app=1")
    assert received.headers["content-type"] == "application/json"
    assert json.loads(received.body) == {
        "version": 1,
        "event_id": str(arrived.event_id),
        "handle": "a handle, µ",
    }
    half_past_nine = int(datetime(2026, 12, 1, 9, 30, tzinfo=UTC).timestamp())
    assert half_past_nine <= verified(received) < half_past_nine + 9
    assert str(device_id) not in str(received)


def test_a_signature_fits_its_own_body_only(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    handle([event(gateway_device())], 20)
    [received] = gateway.received
    with pytest.raises(AssertionError):
        verified(received, secret="another secret")
    other = Received("POST", "/", received.headers, received.body + b" ", 0)
    with pytest.raises(AssertionError):
        verified(other)


def settled(device_id: object = None, seconds: float = 20) -> Settlement | None:
    arrived = event(gateway_device() if device_id is None else device_id)  # type: ignore[arg-type]
    return handle([arrived], seconds).get(arrived.event_id)


def test_each_answer_of_the_gateway_has_its_meaning(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    later = Settlement(Disposition.LATER, Code.RATE_LIMITED, 12.0)
    table = [
        (Answer(200, body=b'{"ok": true}'), Settlement(Disposition.DONE, Code.SENT)),
        (Answer(204), Settlement(Disposition.DONE, Code.SENT)),
        (Answer(429, {"Retry-After": "12"}), later),
        (Answer(404), Settlement(Disposition.FAILED, Code.STATUS_4XX)),
        (Answer(401), Settlement(Disposition.FAILED, Code.STATUS_4XX)),
        (Answer(500), Settlement(Disposition.FAILED, Code.STATUS_5XX)),
        (Answer(302, {"Location": "/"}), Settlement(Disposition.FAILED, Code.STATUS_3XX)),
    ]
    for answer, meaning in table:
        gateway.answer = lambda received, answer=answer: answer
        assert settled() == meaning
    assert len(gateway.received) == len(table)


def test_only_410_of_the_gateway_ends_a_registration(wired: Wiring, gateway: HttpServer) -> None:
    """A 404 is what a wrong WAKE_GATEWAY_URL gets: it must not unregister everybody."""
    wired.use_gateway(gateway.url())
    for status, stays in ((404, True), (410, False)):
        gateway.answer = lambda received, status=status: Answer(status)
        device_id = gateway_device()
        settled(device_id)
        assert (Device.objects.get(device_id=device_id).wake_sealed is not None) is stays


@pytest.mark.parametrize(
    ("behave", "code"), [(hang, Code.TIMEOUT), (drip, Code.TIMEOUT), (reset, Code.BROKEN_OFF)]
)
def test_a_gateway_that_does_not_answer_is_a_failure(
    wired: Wiring, behave: object, code: Code
) -> None:
    with RawServer(behave) as server:  # type: ignore[arg-type]
        wired.use_gateway(f"http://127.0.0.1:{server.port}/")
        wired.replace(call_seconds=0.3)
        assert settled() == Settlement(Disposition.FAILED, code)


def test_a_gateway_where_nobody_listens_is_a_failure(wired: Wiring) -> None:
    with RawServer(hang) as server:
        pass
    wired.use_gateway(f"http://127.0.0.1:{server.port}/")
    assert settled() == Settlement(Disposition.FAILED, Code.CONNECT)


def test_a_huge_answer_is_an_answer(wired: Wiring) -> None:
    flood = Flood(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    with RawServer(flood) as server:
        wired.use_gateway(f"http://127.0.0.1:{server.port}/")
        assert settled() == Settlement(Disposition.DONE, Code.SENT)
        assert flood.over.wait(5)


def test_a_gateway_with_the_wrong_certificate_gets_nothing(
    wired: Wiring, authority: Authority
) -> None:
    with HttpServer(tls=authority.server_context("elsewhere.test")) as server:
        wired.use_gateway(server.url())
        assert settled() == Settlement(Disposition.FAILED, Code.TLS)
        assert server.received == []


def test_a_gateway_at_a_private_address_must_be_allowed(
    wired: Wiring, authority: Authority
) -> None:
    with HttpServer(tls=authority.server_context("127.0.0.1")) as server:
        wired.use_gateway(server.url())
        wired.set(WAKE_EGRESS_ALLOW=["192.168.0.0/16"])
        assert settled() == Settlement(Disposition.FAILED, Code.REFUSED_ADDRESS)
        wired.set(WAKE_EGRESS_ALLOW=["127.0.0.1"])
        assert settled() == Settlement(Disposition.DONE, Code.SENT)


def test_without_a_gateway_there_is_nothing_to_be_done(wired: Wiring) -> None:
    assert settled() == Settlement(Disposition.DONE, Code.NO_GATEWAY)


def test_a_time_to_wait_is_a_number_or_a_date_and_within_bounds() -> None:
    now = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
    waits = {
        None: 30.0,
        "": 30.0,
        "0": 1.0,
        "7": 7.0,
        "3601": 3600.0,
        "9" * 500: 3600.0,
        "-5": 30.0,
        "1.5": 30.0,
        "soon": 30.0,
        "Tue, 01 Dec 2026 09:31:30 GMT": 90.0,
        "Tue, 01 Dec 2026 09:29:00 GMT": 1.0,
        "Wed, 02 Dec 2026 09:30:00 GMT": 3600.0,
        "Tue, 01 Dec 2026 09:31:30": 90.0,
        "Tue, 99 Dec 2026 09:31:30 GMT": 30.0,
    }
    assert {text: wait_of(text, now=now) for text in waits} == waits
