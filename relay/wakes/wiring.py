"""The parts of this process that send wakes, put together from the settings once."""

from dataclasses import dataclass
from functools import cache

from django.conf import settings

from config.kernel.outgoing import Allowed
from relay.wakes.client import Client
from relay.wakes.gateway import GatewayAddress
from relay.wakes.hosts import Hosts
from relay.wakes.lookups import Lookups
from relay.wakes.recent import Recent
from relay.wakes.vapid import Vapid, derived_key, key_of_file


@dataclass(frozen=True)
class Parts:
    """What the handler works with. Times are in seconds."""

    client: Client
    recent: Recent
    hosts: Hosts
    gateway: GatewayAddress | None
    vapid: Vapid
    threads: int
    per_host: int
    call_seconds: float = 5.0
    batch_seconds: float = 20.0

    @property
    def per_gateway(self) -> int:
        """The gateway serves every device and is the operator's own: half of the threads."""
        return max(self.per_host, self.threads // 2)


@cache
def parts() -> Parts:
    """As the settings say."""
    return Parts(
        client=Client(
            allowed=allowed(),
            lookups=Lookups(),
            ca_file=settings.WAKE_CA_FILE,
            connections=settings.WAKE_THREADS,
        ),
        recent=Recent(redis_url=settings.REDIS_URL, milliseconds=settings.WAKE_DEBOUNCE_MS),
        hosts=Hosts(),
        gateway=_gateway(),
        vapid=vapid(),
        threads=settings.WAKE_THREADS,
        per_host=settings.WAKE_PER_HOST,
    )


def allowed() -> Allowed:
    """The operator's exceptions."""
    return Allowed.parse(settings.WAKE_EGRESS_ALLOW)


def vapid() -> Vapid:
    """The relay's identity towards push services; see `relay.wakes.vapid`."""
    file = settings.WAKE_VAPID_KEY_FILE
    key = derived_key(settings.SECRET_KEY) if file is None else key_of_file(file)
    contact = settings.WAKE_VAPID_CONTACT
    if contact is None and settings.RELAY_URL.startswith("https://"):
        contact = settings.RELAY_URL
    return Vapid(key, contact)


def _gateway() -> GatewayAddress | None:
    if settings.WAKE_GATEWAY_URL is None:
        return None
    return GatewayAddress(settings.WAKE_GATEWAY_URL, settings.WAKE_GATEWAY_SECRET)
