"""A browser with a push subscription: it can read what is pushed to it.

Written from RFC 8291 and RFC 8292 for these tests, and tried on their examples, so that the
relay's own code is not what it is checked by.
"""

import base64
import hmac
import json
import secrets
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CURVE = ec.SECP256R1()


def encode(raw: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """The inverse of `encode`."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Subscriber:
    """The keys of one subscription."""

    def __init__(self, *, private: bytes | None = None, auth: bytes | None = None) -> None:
        self._key = (
            ec.generate_private_key(CURVE)
            if private is None
            else ec.derive_private_key(int.from_bytes(private, "big"), CURVE)
        )
        self.auth = auth or secrets.token_bytes(16)
        self.p256dh = self._key.public_key().public_bytes(
            Encoding.X962, PublicFormat.UncompressedPoint
        )

    def body(self, endpoint: str) -> dict[str, str]:
        """What a client registers."""
        return {
            "transport": "webpush",
            "endpoint": endpoint,
            "p256dh": encode(self.p256dh),
            "auth": encode(self.auth),
        }

    def read(self, message: bytes) -> bytes:
        """Decrypt a message of one record (RFC 8291 section 3.4, step by step)."""
        salt, record_size, id_length = message[:16], message[16:20], message[20]
        sender = message[21 : 21 + id_length]
        assert int.from_bytes(record_size, "big") >= len(message) - 21 - id_length
        shared = self._key.exchange(
            ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(CURVE, sender)
        )
        key_info = b"WebPush: info\x00" + self.p256dh + sender
        ikm = _mac(_mac(self.auth, shared), key_info + b"\x01")
        prk = _mac(salt, ikm)
        key = _mac(prk, b"Content-Encoding: aes128gcm\x00\x01")[:16]
        nonce = _mac(prk, b"Content-Encoding: nonce\x00\x01")[:12]
        padded = AESGCM(key).decrypt(nonce, message[21 + id_length :], None)
        plaintext = padded.rstrip(b"\x00")
        assert plaintext.endswith(b"\x02"), "the last record ends in 2"
        return plaintext[:-1]


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, sha256).digest()


def verified_claims(authorization: str) -> tuple[dict[str, Any], str]:
    """The claims of a VAPID header whose signature is good, and the public key in it."""
    scheme, _, rest = authorization.partition(" ")
    assert scheme == "vapid"
    parameters = dict(part.strip().split("=", 1) for part in rest.split(","))
    head, claims, signature = parameters["t"].split(".")
    assert json.loads(decode(head)) == {"typ": "JWT", "alg": "ES256"}
    raw = decode(signature)
    assert len(raw) == 64
    der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    public = ec.EllipticCurvePublicKey.from_encoded_point(CURVE, decode(parameters["k"]))
    public.verify(der, f"{head}.{claims}".encode(), ec.ECDSA(SHA256()))
    return json.loads(decode(claims)), parameters["k"]
