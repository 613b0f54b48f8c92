"""Bearer tokens (PROTOCOL section 1): `rld1.<device uuid>.<secret>`, `rlp1.<provisioner …>`.

The secret is 32 random bytes in base64url without padding. Only the SHA-256 of those bytes is
ever stored; being random, they need no slow hash.
"""

import base64
import binascii
import re
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from uuid import UUID

DEVICE, PROVISIONER = "rld1", "rlp1"
SECRET_BYTES = 32
_TOKEN = re.compile(
    r"(rld1|rlp1)\.([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.([A-Za-z0-9_-]{43})"
)


@dataclass(frozen=True)
class Secret:
    """A new secret, before it is forgotten."""

    value: bytes = field(repr=False)

    @property
    def sha256(self) -> bytes:
        """What the server stores."""
        return sha256(self.value).digest()


@dataclass(frozen=True)
class PresentedToken:
    """What a caller showed: the kind, the id, and the digest of the secret."""

    kind: str
    id: UUID
    sha256: bytes = field(repr=False)


def new_secret() -> Secret:
    """32 bytes from the system's generator."""
    return Secret(secrets.token_bytes(SECRET_BYTES))


def device_token(device_id: UUID, secret: Secret) -> str:
    """A device's token as text."""
    return f"{DEVICE}.{device_id}.{_base64url(secret.value)}"


def provisioner_token(provisioner_id: UUID, secret: Secret) -> str:
    """A provisioner's token as text."""
    return f"{PROVISIONER}.{provisioner_id}.{_base64url(secret.value)}"


def parse(token: str) -> PresentedToken | None:
    """The parts of a token, or None when it is not of the form."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    kind, identity, text = match.groups()
    try:
        secret = base64.b64decode(text + "=", altchars=b"-_", validate=True)
    except binascii.Error:
        return None
    if _base64url(secret) != text:  # the last character's spare bits must be zero
        return None
    return PresentedToken(kind, UUID(identity), sha256(secret).digest())


def _base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
