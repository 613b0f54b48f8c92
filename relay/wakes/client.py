"""The one HTTP client of wakes: checked addresses, one time limit, no redirects.

It stands on httpcore, the engine below httpx, since that is where an address can be pinned: a
name is resolved here, what came out is judged, and the connection goes to the address that
was judged, while certificate and SNI keep to the name. A name that answers differently the
next time (DNS rebinding) changes nothing. There is no redirect, proxy, cookie or decoding
that would have to be turned off.

A call's seconds cover everything: lookup, connect, TLS, request and answer. httpcore's own
limits start anew with every read, so that a server sending a byte a second would hold a
thread for ever; the streams here count against the call's end instead.
"""

import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpcore

from config.kernel.outgoing import Address, Allowed
from relay.wakes.codes import CallFailedError, Code
from relay.wakes.lookups import Lookups

#: Addresses of one name that a call tries.
_MOST_ADDRESSES = 4
#: Only the status counts; what follows is read to keep the connection, this much and this long.
_DRAIN_BYTES, _DRAIN_SECONDS = 16 * 1024, 0.25
#: Shorter than what servers commonly allow, so that they rarely close what we are about to use.
_KEEP_SECONDS = 4.0
_ALWAYS = (("User-Agent", "relay"), ("Accept-Encoding", "identity"))
_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError)


@dataclass(frozen=True)
class Call:
    """A POST to be made."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Reply:
    """What counts of an answer."""

    status: int
    retry_after: str | None


class _Current(threading.local):
    """The call that this thread is making: when it must be over, whether it made a connection."""

    ends_at = 0.0
    connected = False

    def left(self) -> float:
        seconds = self.ends_at - time.monotonic()
        if seconds <= 0:
            raise CallFailedError(Code.TIMEOUT)
        return seconds


_CURRENT = _Current()


class Client:
    """Makes calls; for any number of threads. Keeps connections for a few seconds."""

    def __init__(
        self,
        *,
        allowed: Allowed,
        lookups: Lookups,
        ca_file: Path | None = None,
        connections: int = 32,
    ) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls_context(ca_file),
            max_connections=connections,
            max_keepalive_connections=connections,
            keepalive_expiry=_KEEP_SECONDS,
            network_backend=_Backend(allowed, lookups),
        )

    def post(self, call: Call, *, seconds: float) -> Reply:
        """The answer, whatever its status. Raises CallFailedError when there is none in time."""
        _CURRENT.ends_at = time.monotonic() + seconds
        try:
            return self._post(call)
        except CallFailedError as error:
            if error.code is not Code.BROKEN_OFF or _CURRENT.connected:
                raise
        # A kept connection that its server closed meanwhile: once more, on another.
        return self._post(call)

    def close(self) -> None:
        """Close what is kept."""
        self._pool.close()

    def _post(self, call: Call) -> Reply:
        _CURRENT.connected = False
        try:
            with self._pool.stream(
                "POST",
                call.url,
                headers=[*call.headers.items(), *_ALWAYS],
                content=call.body,
                extensions={"timeout": {"pool": _CURRENT.left()}},
            ) as response:
                reply = Reply(response.status, _header(response.headers, b"retry-after"))
                _drain(response)
                return reply
        except httpcore.TimeoutException:
            raise CallFailedError(Code.TIMEOUT) from None
        except httpcore.ConnectError:
            raise CallFailedError(Code.CONNECT) from None
        except _BROKEN:
            raise CallFailedError(Code.BROKEN_OFF) from None


def tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """TLS 1.2 and newer, the usual authorities, and the operator's own beside them."""
    context = httpcore.default_ssl_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    values = [value for each, value in headers if each.lower() == name]
    return values[0].decode("latin-1") if values else None


def _drain(response: httpcore.Response) -> None:
    """Read a short rest, so that the connection can be kept; give it up for a long one."""
    _CURRENT.ends_at = min(_CURRENT.ends_at, time.monotonic() + _DRAIN_SECONDS)
    left = _DRAIN_BYTES
    try:
        for part in response.iter_stream():
            left -= len(part)
            if left < 0:
                return
    except (CallFailedError, *_BROKEN, httpcore.TimeoutException):
        return  # the status was there


class _Backend(httpcore.NetworkBackend):
    """Connects to addresses that were judged."""

    def __init__(self, allowed: Allowed, lookups: Lookups) -> None:
        self._allowed = allowed
        self._lookups = lookups
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        _CURRENT.connected = True
        addresses = self._judged(host, port)
        for tried, address in enumerate(addresses):
            share = _CURRENT.left() / (len(addresses) - tried)
            try:
                return _Stream(self._sockets.connect_tcp(str(address), port, timeout=share))
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if tried + 1 == len(addresses):
                    raise
        raise CallFailedError(Code.REFUSED_ADDRESS)

    def _judged(self, host: str, port: int) -> list[Address]:
        found = self._lookups.addresses(host, port, seconds=_CURRENT.left())
        good = [each for each in found if self._allowed.lets_through(host=host, address=each)]
        return good[:_MOST_ADDRESSES]


class _Stream(httpcore.NetworkStream):
    """A connection whose every step counts against the end of the call that uses it."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _CURRENT.left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _CURRENT.left())

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        try:
            return _Stream(self._inner.start_tls(ssl_context, server_hostname, _CURRENT.left()))
        except httpcore.ConnectError:
            raise CallFailedError(Code.TLS) from None
        except CallFailedError:  # no time left to begin with
            self.close()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
