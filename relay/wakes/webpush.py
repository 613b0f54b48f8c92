"""A push message for one subscription (RFC 8030), encrypted to it (RFC 8291).

It says nothing but that there is something to pull. It is encrypted all the same: browsers
and UnifiedPush deliver nothing else, and the push service need not tell a wake from a message.
"""

import secrets
from datetime import datetime
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from config.kernel import outgoing, pseudonyms, strict_json
from relay.wakes.client import Call
from relay.wakes.registrations import WebPush
from relay.wakes.vapid import Vapid, point_of

#: Push services keep a message for four weeks at most.
LONGEST_TTL = 28 * 86_400
_RECORD_SIZE = 4096
_SALT_BYTES = 16
_LAST_RECORD = b"\x02"


def origin_of(registration: WebPush) -> str:
    """Scheme, host and port of the push service."""
    target = outgoing.parse_url(registration.endpoint)
    assert target is not None  # it was checked when it was registered
    return target.origin


def wake_call(
    *,
    registration: WebPush,
    device_id: UUID,
    event_id: UUID,
    vapid: Vapid,
    ttl_seconds: int,
    now: datetime,
) -> Call:
    """The push. `ttl_seconds` is how long it is of use to a device that is offline."""
    said = {"version": 1, "event_id": str(event_id)}
    headers = {
        "Authorization": vapid.authorization(origin=origin_of(registration), now=now),
        "Content-Encoding": "aes128gcm",
        "Content-Type": "application/octet-stream",
        "TTL": str(min(ttl_seconds, LONGEST_TTL)),
        "Topic": topic_of(device_id, registration),
        # A phone that sleeps is woken for this: the relay cannot tell a call from a chat.
        "Urgency": "high",
    }
    body = encrypt(
        strict_json.dumps(said).encode(),
        registration=registration,
        salt=secrets.token_bytes(_SALT_BYTES),
        sender=ec.generate_private_key(ec.SECP256R1()),
    )
    return Call(registration.endpoint, headers, body)


def topic_of(device_id: UUID, registration: WebPush) -> str:
    """A later wake replaces one that the push service still holds (RFC 8030, section 5.4).

    Keyed, and another one for each subscription: no two can be linked by it.
    """
    return pseudonyms.lasting("wake topic", device_id.bytes + registration.endpoint.encode())


def encrypt(
    plaintext: bytes, *, registration: WebPush, salt: bytes, sender: ec.EllipticCurvePrivateKey
) -> bytes:
    """One record of aes128gcm (RFC 8188) under the keys of RFC 8291, section 3.4.

    `salt` (16 bytes) and `sender` are used for this one message.
    """
    receiver = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), registration.p256dh)
    sender_point = point_of(sender.public_key())
    info = b"WebPush: info\0" + registration.p256dh + sender_point
    secret = _hkdf(sender.exchange(ec.ECDH(), receiver), registration.auth, info, 32)
    key = _hkdf(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = _hkdf(secret, salt, b"Content-Encoding: nonce\0", 12)
    head = salt + _RECORD_SIZE.to_bytes(4, "big") + bytes([len(sender_point)]) + sender_point
    return head + AESGCM(key).encrypt(nonce, plaintext + _LAST_RECORD, None)


def _hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)
