"""A signed POST to the deployment's own gateway (PROTOCOL section 7).

The gateway does what only its operator can: speak to APNs or FCM in the app's name. It checks
the signature over time and body, refuses old times, and sends an empty push for the handle.
"""

import hmac
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from uuid import UUID

from config.kernel import outgoing, strict_json
from relay.wakes.client import Call
from relay.wakes.registrations import Gateway


@dataclass(frozen=True)
class GatewayAddress:
    """WAKE_GATEWAY_URL and WAKE_GATEWAY_SECRET."""

    url: str
    secret: str = field(repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        target = outgoing.parse_url(self.url)
        assert target is not None  # it was checked at the start
        return target.origin


def wake_call(
    *, registration: Gateway, event_id: UUID, gateway: GatewayAddress, now: datetime
) -> Call:
    """The POST that asks the gateway to wake a device."""
    said = {"version": 1, "event_id": str(event_id), "handle": registration.handle}
    body = strict_json.dumps(said).encode()
    headers = {
        "Content-Type": "application/json",
        "Relay-Signature": signature(body=body, secret=gateway.secret, at=now),
    }
    return Call(gateway.url, headers, body)


def signature(*, body: bytes, secret: str, at: datetime) -> str:
    """The value of `Relay-Signature`: HMAC-SHA256 over "<unix time>.<body>"."""
    seconds = str(int(at.timestamp()))
    digest = hmac.new(secret.encode(), seconds.encode() + b"." + body, sha256).hexdigest()
    return f"t={seconds},v1={digest}"
