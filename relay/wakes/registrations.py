"""How a device wants to be woken, and how that lies in its row: sealed (PROTOCOL section 6).

An endpoint or a handle names a person's device at another service, so it is encrypted at rest
with AES-GCM. The device id is authenticated with it: a registration copied into another
device's row does not open there. Each sealing has a nonce of its own, so the sealed bytes also
name one registration: made again, even with the same values, it is another.

    byte 0          format, 1
    byte 1          id of the key
    bytes 2 to 13   nonce
    the rest        AES-GCM of the members as JSON
"""

import base64
import json
import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from config.kernel import keys, strict_json

_FORMAT = 1
_HEAD_BYTES, _NONCE_BYTES = 2, 12


class Transport(StrEnum):
    """The two ways to a device."""

    WEBPUSH = "webpush"
    GATEWAY = "gateway"


@dataclass(frozen=True)
class WebPush:
    """A push subscription (RFC 8030, 8291): UnifiedPush hands out the same three."""

    transport: ClassVar[Transport] = Transport.WEBPUSH
    endpoint: str = field(repr=False)
    p256dh: bytes = field(repr=False)
    auth: bytes = field(repr=False)

    def fields(self) -> tuple[str | bytes, ...]:
        """Everything that makes it this registration, for a fingerprint."""
        return (self.transport, self.endpoint, self.p256dh, self.auth)

    def _members(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "p256dh": base64.b64encode(self.p256dh).decode(),
            "auth": base64.b64encode(self.auth).decode(),
        }

    @classmethod
    def _of_members(cls, members: dict[str, str]) -> "WebPush":
        return cls(
            members["endpoint"],
            base64.b64decode(members["p256dh"]),
            base64.b64decode(members["auth"]),
        )


@dataclass(frozen=True)
class Gateway:
    """A name that the deployment's own gateway knows the device by."""

    transport: ClassVar[Transport] = Transport.GATEWAY
    handle: str = field(repr=False)

    def fields(self) -> tuple[str | bytes, ...]:
        """Everything that makes it this registration, for a fingerprint."""
        return (self.transport, self.handle)

    def _members(self) -> dict[str, str]:
        return {"handle": self.handle}

    @classmethod
    def _of_members(cls, members: dict[str, str]) -> "Gateway":
        return cls(members["handle"])


Registration = WebPush | Gateway
_KINDS: dict[str, type[WebPush] | type[Gateway]] = {
    kind.transport: kind for kind in (WebPush, Gateway)
}


class SealedShutError(Exception):
    """A registration that no key of ours opens."""


def seal(*, device_id: UUID, registration: Registration) -> bytes:
    """The bytes for `Device.wake_sealed`."""
    key = keys.current(keys.Purpose.WAKE)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    head = bytes([_FORMAT, key.id])
    members = {"transport": registration.transport, **registration._members()}
    content = strict_json.dumps(members).encode()
    return head + nonce + AESGCM(key.secret).encrypt(nonce, content, head + device_id.bytes)


def unseal(*, device_id: UUID, sealed: bytes) -> Registration:
    """The registration. Raises SealedShutError: the key is gone, or it is another device's."""
    head, nonce = sealed[:_HEAD_BYTES], sealed[_HEAD_BYTES : _HEAD_BYTES + _NONCE_BYTES]
    key = keys.ring(keys.Purpose.WAKE).honoured.get(key_id_of(sealed))
    if head[0] != _FORMAT or key is None:
        raise SealedShutError
    rest = sealed[_HEAD_BYTES + _NONCE_BYTES :]
    try:
        content = AESGCM(key.secret).decrypt(nonce, rest, head + device_id.bytes)
    except InvalidTag:
        raise SealedShutError from None
    members = json.loads(content)
    return _KINDS[members["transport"]]._of_members(members)


def key_id_of(sealed: bytes) -> int:
    """Under which key it was sealed, for the report on keys."""
    return sealed[1]
