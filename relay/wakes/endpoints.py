"""Which endpoints a device may register.

What a name resolves to is judged when it is called, every time anew. An address that is
written out is judged here as well, so that a client learns at once.
"""

from typing import Literal

from config.kernel import outgoing
from relay.wakes.wiring import allowed

#: Below it, other protocols than HTTPS have their homes: nobody is to be knocked at by us on
#: port 22 or 25. Self-hosted push services (UnifiedPush) do live above.
_FIRST_FREE_PORT = 1024

Fault = Literal["url", "port", "address"]


def fault_of(endpoint: str) -> Fault | None:
    """What is wrong with an endpoint, if anything."""
    target = outgoing.parse_url(endpoint)
    if target is None or target.scheme != "https":
        return "url"
    if target.port != 443 and target.port < _FIRST_FREE_PORT:
        return "port"
    address = outgoing.literal(target.host)
    if address is not None and not allowed().lets_through(host=target.host, address=address):
        return "address"
    return None
