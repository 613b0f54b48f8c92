"""Who a request comes from, as far as the network says."""

import ipaddress
from collections.abc import Mapping
from typing import Any

from django.conf import settings


def client_address(environ: Mapping[str, Any]) -> str:
    """The address of the client, by the exact number of proxies that we trust.

    Each of our proxies appends the address it saw to X-Forwarded-For; what stands before
    those entries came from the client and is believed by nobody.
    """
    peer = str(environ.get("REMOTE_ADDR", ""))
    trusted = int(settings.TRUSTED_PROXY_COUNT)
    if trusted == 0:
        return peer
    entries = [part.strip() for part in environ.get("HTTP_X_FORWARDED_FOR", "").split(",")]
    if len(entries) < trusted:
        return peer
    try:
        return str(ipaddress.ip_address(entries[-trusted]))
    except ValueError:
        return peer


def network_of(address: str) -> str:
    """What one subscriber holds: an IPv4 address, or an IPv6 /64."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
