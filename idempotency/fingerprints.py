"""Keyed hashes of what a request said (PROTOCOL section 1, "Same request").

A fingerprint is taken over the parsed fields, each with its length before it, so that no two
different lists of fields can give the same bytes, and key order and white space do not count.
"""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from config.kernel import keys

#: Part of every fingerprint: two formats can never be taken for one another.
FORMAT = b"relay-fingerprint-1"

Field = str | bytes | int | None


def request_fingerprint(*, route: str, fields: Iterable[Field]) -> bytes:
    """32 bytes that stand for the request's route and fields, in their order."""
    return _digest(keys.Purpose.FINGERPRINT, [FORMAT, route, *fields])


def scope_hash(*, caller: str, route: str, key: str) -> bytes:
    """32 bytes that stand for (caller, route, key)."""
    return _digest(keys.Purpose.SCOPE, [caller, route, key])


def _digest(purpose: keys.Purpose, fields: Iterable[Field]) -> bytes:
    mac = hmac.new(keys.current(purpose).secret, digestmod=sha256)
    for field in fields:
        encoded = _encode(field)
        mac.update(len(encoded).to_bytes(8, "big"))
        mac.update(encoded)
    return mac.digest()


def _encode(field: Field) -> bytes:
    """The field's kind in one byte, then its value: 1, "1" and b"1" differ, as do None and ""."""
    match field:
        case None:
            return b"n"
        case bool():
            raise TypeError("a flag is no field")
        case int():
            return b"i" + str(field).encode()
        case str():
            return b"s" + field.encode()
        case bytes():
            return b"b" + field
