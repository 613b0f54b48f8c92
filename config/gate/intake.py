"""Taking a request's body in, so that nobody who works ever waits for one."""

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

from django.conf import settings

from config.kernel.addresses import client_address, network_of
from config.kernel.lines import Lines, patience

#: Bytes of a body at most (PROTOCOL section 1). Whoever announces more is told so at once.
MOST_BYTES = 8 * 2**20
#: A body of more than this takes a seat among the large ones, as it stays in memory.
LARGE_BYTES = 128 * 2**10
LARGE_SEATS = 8

#: Where the environ of a request holds what was taken in.
TAKEN_IN = "relay.body"

_WAITING = int(settings.RELAY_WEB_WAITING)
#: Of all threads that wait, a quarter is for requests without a body; of the rest one address
#: takes a third at most. While bodies come nobody notices; once they do not, others are told.
_ALL = Lines(seats=_WAITING * 3 // 4)
_BY_ADDRESS = Lines(seats=_WAITING // 4)
_LARGE = Lines(seats=LARGE_SEATS)
_LARGE_BY_ADDRESS = Lines(seats=LARGE_SEATS // 2)


class State(Enum):
    """How a body came."""

    WHOLE = auto()
    SHORT = auto()  # the client broke off
    TOO_LARGE = auto()
    CROWDED = auto()  # too many are on their way and do not come
    CROWDED_BY_CALLER = auto()  # from that very address


@dataclass(frozen=True)
class Body:
    """What was taken in; of one that is not WHOLE nothing may be used."""

    state: State
    data: bytes = field(default=b"", repr=False)
    #: Whether the connection can serve another request: nothing of this one is left on it.
    is_at_its_end: bool = True


class _CrowdedError(Exception):
    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


def body_of(environ: dict[str, Any]) -> Body:
    """The body of a request, taken in now unless it was before."""
    if TAKEN_IN not in environ:
        environ[TAKEN_IN] = _take_in(environ)
    found: Body = environ[TAKEN_IN]
    return found


def take_in(environ: dict[str, Any]) -> Body:
    """Take the body in and leave it in the environ, for `body_of` and for whoever reads it."""
    body = body_of(environ)
    environ["wsgi.input"] = io.BytesIO(body.data)
    return body


def _take_in(environ: dict[str, Any]) -> Body:
    announced = environ.get("CONTENT_LENGTH") or ""
    chunked = "HTTP_TRANSFER_ENCODING" in environ
    length = int(announced) if announced.isdecimal() else None
    if environ.get("REQUEST_METHOD") in ("GET", "HEAD") or (not length and not chunked):
        return Body(State.WHOLE)
    if length is not None and length > MOST_BYTES:
        return Body(State.TOO_LARGE, is_at_its_end=False)
    try:
        with _seats(environ, is_large=length is None or length > LARGE_BYTES):
            return _read(environ["wsgi.input"], length)
    except _CrowdedError as crowded:
        return Body(crowded.state, is_at_its_end=False)


@contextmanager
def _seats(environ: dict[str, Any], *, is_large: bool) -> Iterator[None]:
    network = network_of(client_address(environ))
    until = patience()
    wanted = [(_BY_ADDRESS, network, State.CROWDED_BY_CALLER), (_ALL, "", State.CROWDED)]
    if is_large:
        wanted += [
            (_LARGE_BY_ADDRESS, network, State.CROWDED_BY_CALLER),
            (_LARGE, "", State.CROWDED),
        ]
    with ExitStack() as seats:
        for lines, key, state in wanted:
            seats.enter_context(lines.place(key, partial(_CrowdedError, state), until=until))
        yield


def _read(stream: Any, length: int | None) -> Body:
    """All of it: what was announced, or what comes in chunks."""
    parts, left = [], MOST_BYTES + 1 if length is None else length
    try:
        while left > 0 and (part := stream.read(left)):
            parts.append(part)
            left -= len(part)
    except OSError:
        return Body(State.SHORT, is_at_its_end=False)
    data = b"".join(parts)
    if len(data) > MOST_BYTES:
        return Body(State.TOO_LARGE, is_at_its_end=False)
    if length is not None and left > 0:
        return Body(State.SHORT, is_at_its_end=False)
    return Body(State.WHOLE, data)
