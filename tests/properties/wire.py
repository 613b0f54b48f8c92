"""Requests as bytes, taken apart so that a test can spoil any part of them."""

import http.client
import socket
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import httpx

#: Seconds: what takes longer hangs.
PATIENCE = 10


@dataclass(frozen=True)
class Raw:
    """One request. `is_http` says that it is HTTP still, so that the relay itself must answer."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""
    is_http: bool = True
    spoilt: tuple[str, ...] = field(default=())

    def spoil(self, what: str, **changes: object) -> "Raw":
        """The same with a part of it changed, and a note of what was done."""
        return replace(self, spoilt=(*self.spoilt, what), **changes)  # type: ignore[arg-type]

    def with_header(self, name: bytes, *values: bytes) -> "Raw":
        """The same with these values of one header, or without it."""
        kept = [each for each in self.headers if each[0].lower() != name.lower()]
        headers = (*kept, *((name, value) for value in values))
        return self.spoil(f"{name.decode()}: {values!r:.80}", headers=headers)

    def values(self, name: bytes) -> list[bytes]:
        """What it says in a header."""
        return [value for each, value in self.headers if each.lower() == name.lower()]

    def encode(self) -> bytes:
        """As it goes over the wire; Content-Length is counted unless it is there already."""
        headers = list(self.headers)
        counted = self.values(b"Content-Length") or self.values(b"Transfer-Encoding")
        if not counted and (self.body or self.method in (b"POST", b"PUT")):
            headers.append((b"Content-Length", b"%d" % len(self.body)))
        lines = [b"%s %s HTTP/1.1" % (self.method, self.target)]
        lines += [b"%s: %s" % each for each in headers]
        return b"\r\n".join([*lines, b"", b""]) + self.body

    def is_unfinished(self) -> bool:
        """Whether the relay would wait for more of it."""
        if self.values(b"Transfer-Encoding"):
            return not self.body.endswith(b"0\r\n\r\n")
        announced = self.values(b"Content-Length")
        return bool(announced) and announced[0].isdigit() and int(announced[0]) > len(self.body)


def send(url: str, raw: Raw) -> httpx.Response | None:
    """The first answer, or None when the connection was closed without one.

    A request that is unfinished is ended by closing our half of the connection. Raises
    TimeoutError when nothing comes.
    """
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as line:
        try:
            line.sendall(raw.encode())
            if raw.is_unfinished():
                line.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise
        except OSError:
            pass  # answered before it was read to its end: the answer is what counts
        return _answer(line, raw.method.decode("latin-1"))


def _answer(line: socket.socket, method: str) -> httpx.Response | None:
    answer = http.client.HTTPResponse(line, method=method)
    try:
        answer.begin()
        content = answer.read()
    except (http.client.HTTPException, ConnectionResetError, BrokenPipeError):
        return None
    return httpx.Response(answer.status, headers=answer.getheaders(), content=content)
