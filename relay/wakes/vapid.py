"""VAPID: how a push service knows that a push comes from this relay (RFC 8292).

A subscription is bound to the public key that the client gave to its browser as
`applicationServerKey`. Losing the private key ends every subscription, so it does not rotate
with the other keys: it is the file of WAKE_VAPID_KEY_FILE, or else derived from SECRET_KEY.
`manage.py vapid_key` shows the public key, and moves a derived one to a file.
"""

import base64
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from config.kernel import strict_json

#: Push services refuse more than 24 h.
LIFETIME = timedelta(hours=12)
#: The order of P-256 (SEC 2, section 2.4.2).
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class VapidKeyError(ValueError):
    """A file that holds no P-256 private key."""


@dataclass(frozen=True)
class Vapid:
    """The relay's identity towards push services, and whom they may write to."""

    private_key: ec.EllipticCurvePrivateKey = field(repr=False)
    contact: str | None

    @property
    def public_key(self) -> str:
        """As a browser takes it: the uncompressed point in base64url."""
        return base64url(point_of(self.private_key.public_key()))

    def authorization(self, *, origin: str, now: datetime) -> str:
        """The `Authorization` header for a push service."""
        claims: dict[str, object] = {"aud": origin, "exp": int((now + LIFETIME).timestamp())}
        if self.contact is not None:
            claims["sub"] = self.contact
        return f"vapid t={self._token(claims)}, k={self.public_key}"

    def _token(self, claims: dict[str, object]) -> str:
        """A JWT under ES256 (RFC 7515, 7518)."""
        parts = ({"typ": "JWT", "alg": "ES256"}, claims)
        signed = ".".join(base64url(strict_json.dumps(part).encode()) for part in parts)
        r, s = decode_dss_signature(self.private_key.sign(signed.encode(), ec.ECDSA(SHA256())))
        return f"{signed}.{base64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def private_pem(self) -> str:
        """The private key as WAKE_VAPID_KEY_FILE takes it."""
        return self.private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()


def derived_key(secret_key: str) -> ec.EllipticCurvePrivateKey:
    """The key for a deployment that configured none: the same for the same SECRET_KEY.

    64 bits more than the order has, so that the reduction leaves no bias (FIPS 186-5, A.2.1).
    """
    kdf = HKDF(algorithm=SHA256(), length=40, salt=None, info=b"relay/vapid/v1")
    number = int.from_bytes(kdf.derive(secret_key.encode()), "big")
    return ec.derive_private_key(number % (_ORDER - 1) + 1, ec.SECP256R1())


def key_of_file(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key in a PEM file. Raises VapidKeyError."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise VapidKeyError("no readable private key in PEM without a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise VapidKeyError("a private key, but not of the curve P-256")
    return key


def point_of(key: ec.EllipticCurvePublicKey) -> bytes:
    """The 65 bytes of an uncompressed point."""
    return key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )


def base64url(raw: bytes) -> str:
    """Without padding, as all of Web Push has it."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
