"""How a body travels: its length, its chunks, and where it breaks off (PROTOCOL section 1)."""

import json
import socket
import ssl
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.helpers import (
    answered,
    assert_problem,
    envelope_for,
    exchange,
    nothing_happens,
    post,
    raw_head,
    read_answer,
)
from tests.client import Party, RelayClient, make_device, new_key
from tests.conftest import WEB_THREADS

MIB = 2**20
PLAIN = "Content-Type: application/json"
#: Spares each client one of its own; nothing here speaks TLS.
CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _text(device: Party) -> bytes:
    return json.dumps(envelope_for(device)).encode()


def _padded(device: Party, length: int) -> bytes:
    body = _text(device)
    return body + b" " * (length - len(body))


def _key_line() -> str:
    return f"Idempotency-Key: {new_key()}"


# --- Lengths ----------------------------------------------------------------------------------


def test_a_body_of_8_mib_is_read_and_one_byte_more_is_too_large(relay: RelayClient) -> None:
    device = make_device()
    assert post(relay, device, _padded(device, 8 * MIB)).status_code == 201
    with nothing_happens(relay):
        answer = post(relay, device, _padded(device, 8 * MIB + 1))
        assert_problem(answer, "REQUEST_TOO_LARGE")


@pytest.mark.parametrize("length", [8 * MIB + 1, 10**9, 2**63 - 1])
def test_a_length_that_is_too_large_is_refused_before_the_body_comes(
    relay: RelayClient, length: int
) -> None:
    device = make_device()
    with nothing_happens(relay):
        head = raw_head(device, _key_line(), PLAIN, f"Content-Length: {length}")
        assert_problem(answered(exchange(relay.url, head)), "REQUEST_TOO_LARGE")


@pytest.mark.parametrize("sent", [0, 1, 100])
def test_a_body_that_breaks_off_stores_nothing(relay: RelayClient, sent: int) -> None:
    device = make_device()
    body = _text(device)
    with nothing_happens(relay):
        head = raw_head(device, _key_line(), PLAIN, f"Content-Length: {len(body)}")
        answer = exchange(relay.url, head, body[:sent], half_close=True)
        if answer is not None:  # who went away needs no answer
            assert_problem(answer, "MALFORMED_REQUEST")


def test_a_whole_document_that_is_shorter_than_its_length_stores_nothing(
    relay: RelayClient,
) -> None:
    device = make_device()
    body = _text(device)
    with nothing_happens(relay):
        head = raw_head(device, _key_line(), PLAIN, f"Content-Length: {len(body) + 1}")
        answer = exchange(relay.url, head, body, half_close=True)
        if answer is not None:
            assert_problem(answer, "MALFORMED_REQUEST")


@pytest.mark.parametrize("length", ["abc", "-1", "-5000", "1e3", "0x10", "1 2", "5, 6", "9" * 40])
def test_a_length_that_is_no_number_is_refused(relay: RelayClient, length: str) -> None:
    device = make_device()
    with nothing_happens(relay):
        head = raw_head(device, _key_line(), PLAIN, f"Content-Length: {length}")
        answer = exchange(relay.url, head, _text(device), half_close=True)
        assert answer is None or answer.status_code in (400, 413)


def test_two_lengths_that_differ_are_refused(relay: RelayClient) -> None:
    device = make_device()
    body = _text(device)
    with nothing_happens(relay):
        lines = [f"Content-Length: {len(body)}", f"Content-Length: {len(body) - 1}"]
        answer = exchange(relay.url, raw_head(device, _key_line(), PLAIN, *lines), body)
        assert answer is None or answer.status_code == 400


# --- Chunks -----------------------------------------------------------------------------------

CHUNKED = "Transfer-Encoding: chunked"
LAST = b"0\r\n\r\n"
BROKEN = [b"zz\r\n", b"-1\r\n", b"5\r\nabc", b"ffffffffffffffffff\r\n", b""]


def _chunks(body: bytes, size: int = 10_000) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize("size", [1, 7, 100, 100_000])
def test_a_body_in_chunks_is_taken(relay: RelayClient, size: int) -> None:
    device = make_device()
    head = raw_head(device, _key_line(), PLAIN, CHUNKED)
    answer = answered(exchange(relay.url, head, _chunks(_text(device), size), LAST))
    assert answer.status_code == 201
    assert len(relay.walk(device)) == 1


@pytest.mark.parametrize("length", [8 * MIB + 1, 12 * MIB])
def test_chunks_of_over_8_mib_are_too_large(relay: RelayClient, length: int) -> None:
    device = make_device()
    with nothing_happens(relay):
        head = raw_head(device, _key_line(), PLAIN, CHUNKED)
        answer = answered(exchange(relay.url, head, _chunks(_padded(device, length), MIB), LAST))
        assert_problem(answer, "REQUEST_TOO_LARGE")


@pytest.mark.parametrize("broken", BROKEN)
def test_chunks_that_break_off_within_the_document_store_nothing(
    relay: RelayClient, broken: bytes
) -> None:
    device = make_device()
    head = raw_head(device, _key_line(), PLAIN, CHUNKED)
    with nothing_happens(relay):
        part = _chunks(_text(device)[:-1])
        answer = exchange(relay.url, head, part, broken, half_close=True)
        assert answer is None or answer.status_code == 400


@pytest.mark.parametrize("broken", BROKEN)
def test_chunks_that_break_off_behind_the_document_are_refused_or_stored_once(
    relay: RelayClient, broken: bytes
) -> None:
    # The web server does not tell the end of the chunks from their breaking off. More bytes
    # could not have made another object, so a whole one may be taken: its key resolves it.
    device = make_device()
    head, whole = raw_head(device, _key_line(), PLAIN, CHUNKED), _chunks(_text(device))
    answer = exchange(relay.url, head, whole, broken, half_close=True)
    assert answer is None or answer.status_code in (201, 400)
    assert answered(exchange(relay.url, head, whole, LAST)).status_code == 201
    assert len(relay.walk(device)) == 1


# --- Connections ------------------------------------------------------------------------------


def test_a_client_that_waits_for_100_continue_is_told_to_go_on(relay: RelayClient) -> None:
    device = make_device()
    body, address = _text(device), urlsplit(relay.url)
    lines = (_key_line(), PLAIN, f"Content-Length: {len(body)}", "Expect: 100-continue")
    with socket.create_connection((address.hostname, address.port), timeout=10) as line:
        line.sendall(raw_head(device, *lines))
        assert line.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(body)
        assert answered(read_answer(line)).status_code == 201


@pytest.mark.parametrize("length", [1_000, 88_000, 1_000_000])
def test_a_connection_that_is_not_closed_serves_the_next_request_after_a_refusal(
    relay: RelayClient, length: int
) -> None:
    device = make_device()
    headers = {"Authorization": f"Bearer {device.token}"}
    for _ in range(12):
        with httpx.Client(base_url=relay.url, trust_env=False, verify=CONTEXT) as http:
            answer = http.post("/v1/envelopes", content=b"x" * length, headers=headers)
            assert_problem(answer, "UNSUPPORTED_MEDIA_TYPE")
            assert http.get("/v1/device", headers=headers).status_code == 200


@pytest.mark.parametrize("length", [88_000, 8 * MIB])
def test_a_client_that_sends_all_before_it_reads_gets_the_refusal(
    relay: RelayClient, length: int
) -> None:
    device = make_device()
    address = urlsplit(relay.url)
    head = raw_head(device, _key_line(), "Content-Type: text/plain", f"Content-Length: {length}")
    with socket.create_connection((address.hostname, address.port), timeout=10) as line:
        line.sendall(head + b"x" * length)
        assert_problem(answered(read_answer(line)), "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("with_token", [False, True])
@pytest.mark.parametrize("announced", ["Content-Length: 1000", CHUNKED])
def test_bodies_that_never_come_hold_up_nobody_else(
    relay: RelayClient, with_token: bool, announced: str
) -> None:
    caller = make_device() if with_token else None
    address = urlsplit(relay.url)
    with ExitStack() as lines:
        for _ in range(2 * WEB_THREADS):
            line = socket.create_connection((address.hostname, address.port), timeout=10)
            lines.enter_context(line).sendall(raw_head(caller, _key_line(), PLAIN, announced))
        assert httpx.get(f"{relay.url}/livez", timeout=5).status_code == 200
