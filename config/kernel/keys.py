"""Keys by purpose, each with an id (DESIGN section 5, RELAY_KEYS_FILE).

Without RELAY_KEYS_FILE every purpose has one key, derived from SECRET_KEY. With it, a JSON
file says for each purpose which key is current, which others are still honoured, and which
of them are retired, that is, only known in order to say that what they sealed is over:

    {"cursor": {"current": 2, "keys": {"1": "<base64url of 32 bytes>", "2": "…"},
                "retired": [1]}, …}

A key id is a number from 0 to 255: one byte of what it protects.
"""

import base64
import binascii
import json
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

KEY_BYTES = 32


class Purpose(StrEnum):
    """What a key is for; no key serves two purposes."""

    CURSOR = "cursor"
    FINGERPRINT = "fingerprint"
    SCOPE = "scope"
    WAKE = "wake"
    PSEUDONYM = "pseudonym"
    RATE = "rate"


@dataclass(frozen=True)
class Key:
    """A secret of 32 bytes and the id under which it is known."""

    id: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class KeyRing:
    """The keys of one purpose."""

    current: Key
    honoured: dict[int, Key] = field(repr=False)
    retired: frozenset[int] = frozenset()


def current(purpose: Purpose) -> Key:
    """The key that new things are made with."""
    return ring(purpose).current


@cache
def ring(purpose: Purpose) -> KeyRing:
    """All keys of a purpose."""
    if settings.RELAY_KEYS_FILE is None:
        key = Key(0, _derived(purpose))
        return KeyRing(key, {0: key})
    return _ring_from_file(purpose)


def _derived(purpose: Purpose) -> bytes:
    kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=f"relay/{purpose}/v1".encode())
    return kdf.derive(settings.SECRET_KEY.encode())


def _ring_from_file(purpose: Purpose) -> KeyRing:
    path = settings.RELAY_KEYS_FILE
    assert path is not None
    try:
        document = json.loads(path.read_text("utf-8"))
        return _parse_ring(document[purpose])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImproperlyConfigured(
            f"RELAY_KEYS_FILE: no usable keys for {purpose!s} in {path}"
        ) from error


def _parse_ring(entry: dict[str, Any]) -> KeyRing:
    honoured = {int(name): Key(int(name), _decode(text)) for name, text in entry["keys"].items()}
    if not all(0 <= key_id <= 255 for key_id in honoured):
        raise ValueError("a key id is a number from 0 to 255")
    retired = frozenset(int(key_id) for key_id in entry.get("retired", []))
    if not retired <= honoured.keys() - {int(entry["current"])}:
        raise ValueError("a retired key is one of the keys, and not the current one")
    return KeyRing(honoured[int(entry["current"])], honoured, retired)


def _decode(text: str) -> bytes:
    try:
        secret = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError("not base64url") from error
    if len(secret) != KEY_BYTES:
        raise ValueError("a key has 32 bytes")
    return secret
