"""Servers that are called: well-behaved ones that remember, and others that are not."""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Received:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float


@dataclass(frozen=True)
class Answer:
    """What to answer."""

    status: int = 201
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class _Listening:
    """A port of 127.0.0.1 or a neighbour of it, for the length of a `with`."""

    def __init__(self, *, address: str = "127.0.0.1", port: int = 0) -> None:
        self.address = address
        self.connections = 0
        self._port = port

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        raise NotImplementedError


class HttpServer(_Listening):
    """Keeps every request in `received`, and answers what `answer` says."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, **where: Any) -> None:
        super().__init__(**where)
        self.tls = tls
        self.received: list[Received] = []
        self.answer: Callable[[Received], Answer] = lambda received: Answer()

    def __enter__(self) -> Self:
        self._server = _Threading((self.address, self._port), _handler(self))
        self._server.owner = self
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str = "/", *, host: str | None = None) -> str:
        """The address of a path, under any name that leads here."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{host or self.address}:{self.port}{path}"


class _Threading(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True
    block_on_close = False
    owner: HttpServer

    def get_request(self) -> tuple[Any, Any]:
        connection, peer = super().get_request()
        self.owner.connections += 1
        if self.owner.tls is not None:  # the handshake is the handler thread's
            connection = self.owner.tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, peer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news."""


def _handler(server: HttpServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65_536
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            received = Received("POST", self.path, headers, body, time.monotonic())
            server.received.append(received)
            answer = server.answer(received)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return Handler


class RawServer(_Listening):
    """Does to each connection what `behave` does; `stopped` is set when the test is over."""

    def __init__(
        self,
        behave: Callable[[socket.socket, threading.Event], None],
        *,
        tls: ssl.SSLContext | None = None,
        **where: Any,
    ) -> None:
        super().__init__(**where)
        self._behave, self._tls = behave, tls
        self.stopped = threading.Event()

    def __enter__(self) -> Self:
        self._socket = socket.create_server((self.address, self._port), backlog=128)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def stop(self) -> None:
        self.stopped.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # ends the accept
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                self._behave(connection, self.stopped)
        except OSError:
            pass  # the client had enough


def hang(connection: socket.socket, stopped: threading.Event) -> None:
    """Read, and never answer."""
    connection.recv(65_536)
    stopped.wait()


def drip(connection: socket.socket, stopped: threading.Event) -> None:
    """An answer whose head comes a byte at a time, and never ends."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not stopped.wait(0.02):
        connection.sendall(b"a")


def drip_body(connection: socket.socket, stopped: threading.Event) -> None:
    """A good answer whose body comes a byte at a time."""
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not stopped.wait(0.02):
        connection.sendall(b"a")


def reset(connection: socket.socket, stopped: threading.Event) -> None:
    """Read, and throw the connection away."""
    connection.recv(65_536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def garbage(connection: socket.socket, stopped: threading.Event) -> None:
    """Not HTTP."""
    connection.recv(65_536)
    connection.sendall(b"220 mail.example ESMTP\r\n")


class Flood:
    """An answer without end, and how much of it was taken."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.sent = 0
        self.over = threading.Event()

    def __call__(self, connection: socket.socket, stopped: threading.Event) -> None:
        connection.recv(65_536)
        connection.sendall(self._head)
        try:
            while not stopped.is_set():
                self.sent += connection.send(b"a" * 65_536)
        except OSError:
            self.over.set()
            raise
