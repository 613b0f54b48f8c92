"""A call is over in time, whatever the server does."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from config.kernel.outgoing import Allowed
from relay.wakes.client import Call, Client
from relay.wakes.codes import CallFailedError, Code
from relay.wakes.lookups import Lookups
from tests.wakes.authority import Authority
from tests.wakes.servers import (
    Answer,
    Flood,
    HttpServer,
    RawServer,
    drip,
    drip_body,
    garbage,
    hang,
    reset,
)

SECONDS = 0.4


@pytest.fixture
def client(authority: Authority) -> Iterator[Client]:
    made = Client(
        allowed=Allowed.parse(["127.0.0.1", "localhost"]),
        lookups=Lookups(),
        ca_file=authority.file,
    )
    yield made
    made.close()


def url_of(server: RawServer, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.port}/"


def fails_with(client: Client, url: str) -> Code:
    """How a call failed; and it did so in time."""
    began = time.monotonic()
    with pytest.raises(CallFailedError) as caught:
        client.post(Call(url, {}, b"{}"), seconds=SECONDS)
    assert time.monotonic() - began < SECONDS + 1
    return caught.value.code


@pytest.mark.parametrize("behave", [hang, drip])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_hangs_or_drips_is_left(
    client: Client, authority: Authority, behave: object, scheme: str
) -> None:
    tls = authority.server_context("127.0.0.1") if scheme == "https" else None
    with RawServer(behave, tls=tls) as server:  # type: ignore[arg-type]
        assert fails_with(client, url_of(server, scheme)) is Code.TIMEOUT


def test_a_server_that_hangs_in_the_handshake_is_left(client: Client) -> None:
    with RawServer(hang) as server:
        assert fails_with(client, url_of(server, "https")) is Code.TIMEOUT


def test_a_resolver_that_hangs_is_left() -> None:
    never = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        never.wait(20)
        return []

    client = Client(allowed=Allowed(), lookups=Lookups(resolve=resolve, most=2))
    try:
        assert fails_with(client, "https://slow.test/") is Code.TIMEOUT
        assert fails_with(client, "https://slow.test/") is Code.TIMEOUT
        # Those two are still under way: a third one is not even begun.
        assert fails_with(client, "https://slow.test/") is Code.LOOKUPS_BUSY
    finally:
        never.set()


def test_a_connection_thrown_away_is_told_apart(client: Client) -> None:
    with RawServer(reset) as server:
        assert fails_with(client, url_of(server)) is Code.BROKEN_OFF
        assert server.connections == 1
    assert fails_with(client, url_of(server)) is Code.CONNECT


def test_what_is_not_http_is_told_apart(client: Client) -> None:
    with RawServer(garbage) as server:
        assert fails_with(client, url_of(server)) is Code.BROKEN_OFF
        assert fails_with(client, url_of(server, "https")) is Code.TLS


def test_a_head_without_end_is_cut_off(client: Client) -> None:
    flood = Flood(b"HTTP/1.1 200 OK\r\nX-Long: ")
    with RawServer(flood) as server:
        assert fails_with(client, url_of(server)) is Code.BROKEN_OFF
        assert flood.over.wait(5)


def test_a_body_without_end_is_not_read(client: Client) -> None:
    flood = Flood(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    with RawServer(flood) as server:
        assert client.post(Call(url_of(server), {}, b"{}"), seconds=SECONDS).status == 200
        assert flood.over.wait(5)
    assert flood.sent < 2**26  # what the sockets on both ends hold


def test_a_body_that_drips_does_not_hold_an_answer_up(client: Client) -> None:
    with RawServer(drip_body) as server:
        began = time.monotonic()
        assert client.post(Call(url_of(server), {}, b"{}"), seconds=20).status == 200
        assert time.monotonic() - began < 2


def test_a_connection_is_kept_for_the_next_call(client: Client, authority: Authority) -> None:
    with HttpServer(tls=authority.server_context("localhost")) as server:
        server.answer = lambda received: Answer(200, body=b"fine")
        for _ in range(5):
            call = Call(server.url(host="localhost"), {}, b"{}")
            assert client.post(call, seconds=3).status == 200
        assert (len(server.received), server.connections) == (5, 1)


def answer_once(connection: socket.socket, stopped: threading.Event) -> None:
    """A good answer to the first request; none to the second."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    connection.recv(65_536)


def test_a_kept_connection_that_its_server_closed_is_replaced(client: Client) -> None:
    """The server closes as our next request comes in, which it never answers."""
    with RawServer(answer_once) as server:
        for _ in range(2):
            assert client.post(Call(url_of(server), {}, b"{}"), seconds=3).status == 200
        assert server.connections == 2
