"""A network namespace that is joined to this machine by two veth pairs.

One leads to PostgreSQL and can be cut: each end then sends to an address that nobody has, so
that everything vanishes on the way and nobody is told, as when a switch dies. By the other one
a test goes on talking to what runs inside.
"""

import os
import subprocess
from types import TracebackType
from typing import Self

_NAME = f"relay-faults-{os.getpid()}"
#: Each pair is a network of its own, with this machine at .1 and the inside at .2.
DATA_NETWORK, TALK_NETWORK = "10.231.77", "10.231.78"
_NOBODY = "02:00:00:00:77:99"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """Why there can be no namespaces here; None when there can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    try:
        with Namespace():
            return None
    except FileNotFoundError:
        return "there is no iproute2"
    except subprocess.CalledProcessError as error:
        return f"`ip` refused: {error.stderr.strip()}"


class Namespace:
    """For the length of a `with`."""

    #: What a command is to be started with.
    prefix = ["ip", "netns", "exec", _NAME]

    def __enter__(self) -> Self:
        self._remove()
        _ip("netns", "add", _NAME)
        try:
            _ip("-n", _NAME, "link", "set", "lo", "up")
            for device, network in (("rfd0", DATA_NETWORK), ("rft0", TALK_NETWORK)):
                inside = device.replace("0", "1")
                _ip("link", "add", device, "type", "veth", "peer", inside, "netns", _NAME)
                _ip("address", "add", f"{network}.1/24", "dev", device)
                _ip("-n", _NAME, "address", "add", f"{network}.2/24", "dev", inside)
                _ip("link", "set", device, "up")
                _ip("-n", _NAME, "link", "set", inside, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def cut(self) -> None:
        """Nothing reaches the other end any more."""
        self._neighbours("replace", "lladdr", _NOBODY, "nud", "permanent")

    def join(self) -> None:
        """It does again."""
        self._neighbours("delete")

    def _neighbours(self, do: str, *how: str) -> None:
        _ip("neighbour", do, f"{DATA_NETWORK}.2", "dev", "rfd0", *how)
        _ip("-n", _NAME, "neighbour", do, f"{DATA_NETWORK}.1", "dev", "rfd1", *how)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        subprocess.run(["ip", "link", "delete", "rfd0"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", "rft0"], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "delete", _NAME], check=False, capture_output=True)
