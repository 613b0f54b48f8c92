"""Names to addresses, within a time limit.

The system's resolver cannot be told to hurry: against a name server that hangs it may take
half a minute. So each lookup runs in a thread of its own that is left behind when its time is
up. How many may be under way, left ones included, is bounded.
"""

import socket
import threading
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest

from config.kernel import outgoing
from config.kernel.outgoing import Address
from relay.wakes.codes import CallFailedError, Code

#: Lookups under way at most, in this process.
MOST = 128

Resolve = Callable[[str, int], Sequence[str]]


def system_resolver(host: str, port: int) -> list[str]:
    """The addresses that this machine finds for a name, in the order of RFC 6724."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Lookups:
    """The lookups of this process."""

    def __init__(self, *, resolve: Resolve = system_resolver, most: int = MOST) -> None:
        self._resolve = resolve
        self._free = threading.BoundedSemaphore(most)

    def addresses(self, host: str, port: int, *, seconds: float) -> list[Address]:
        """What `host` resolves to, one family after the other in turn.

        Raises CallFailedError: DNS, TIMEOUT, or LOOKUPS_BUSY when too many hang already.
        """
        address = outgoing.literal(host)
        if address is not None:
            return [address]
        if not self._free.acquire(blocking=False):
            raise CallFailedError(Code.LOOKUPS_BUSY)
        lookup = _Lookup(self._resolve, host, port, self._free.release)
        threading.Thread(target=lookup.run, name="wake-lookup", daemon=True).start()
        return _alternate(lookup.wait(seconds))


class _Lookup:
    def __init__(self, resolve: Resolve, host: str, port: int, over: Callable[[], None]) -> None:
        self._resolve, self._host, self._port, self._over = resolve, host, port, over
        self._ended = threading.Event()
        self._found: list[Address] = []

    def run(self) -> None:
        try:
            texts = self._resolve(self._host, self._port)
            found = (outgoing.literal(text) for text in dict.fromkeys(texts))
            self._found = [address for address in found if address is not None]
        except (OSError, UnicodeError):
            pass  # found nothing
        finally:
            self._over()
            self._ended.set()

    def wait(self, seconds: float) -> list[Address]:
        if not self._ended.wait(max(0.0, seconds)):
            raise CallFailedError(Code.TIMEOUT)
        if not self._found:
            raise CallFailedError(Code.DNS)
        return self._found


def _alternate(addresses: Sequence[Address]) -> list[Address]:
    """The first family's first, the other's first, and so on: one of them may lead nowhere."""
    first = [each for each in addresses if each.version == addresses[0].version]
    other = [each for each in addresses if each.version != addresses[0].version]
    pairs = chain.from_iterable(zip_longest(first, other))
    return [each for each in pairs if each is not None]
