"""What stands for an envelope's ciphertext once it is gone (PROTOCOL sections 2 and 5).

A keyed hash over queue, message_id and the SHA-256 of the ciphertext: it recognises a
duplicate, and tells nobody without the key that two envelopes carry the same bytes, nor what
they were.
"""

import hmac
from hashlib import sha256
from uuid import UUID

from config.kernel import keys

_FORMAT = 1


def envelope_fingerprint(*, device_id: UUID, message_id: UUID, ciphertext: bytes) -> bytes:
    """34 bytes: the format, the id of the key, and the hash under that key."""
    key = keys.current(keys.Purpose.FINGERPRINT)
    return _under(key, device_id, message_id, ciphertext)


def is_same_ciphertext(
    stored: bytes, *, device_id: UUID, message_id: UUID, ciphertext: bytes
) -> bool:
    """Whether `stored` was made from this ciphertext, under whichever key it was made."""
    key = keys.ring(keys.Purpose.FINGERPRINT).honoured.get(stored[1])
    if key is None:
        return False
    return hmac.compare_digest(stored, _under(key, device_id, message_id, ciphertext))


def _under(key: keys.Key, device_id: UUID, message_id: UUID, ciphertext: bytes) -> bytes:
    text = b"relay-envelope" + device_id.bytes + message_id.bytes + sha256(ciphertext).digest()
    return bytes([_FORMAT, key.id]) + hmac.new(key.secret, text, sha256).digest()
