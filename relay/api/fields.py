"""Fields as the protocol reads them: strict, and never echoing what was sent."""

import base64
import binascii
import re
from typing import Any
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

_UUID = re.compile(
    r"(?:urn:uuid:)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})",
    re.IGNORECASE | re.ASCII,
)
_SHA256_HEX = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


def parse_uuid(value: Any) -> UUID | None:
    """A UUID in a text form of RFC 4122 (hyphenated, or as a URN), else None."""
    match = _UUID.fullmatch(value) if isinstance(value, str) else None
    return UUID(match.group(1)) if match else None


@extend_schema_field(OpenApiTypes.UUID)
class UuidField(serializers.Field):
    """A UUID; canonical lower case on output."""

    default_error_messages = {"form": "Must be a UUID in a text form of RFC 4122."}

    def to_internal_value(self, data: Any) -> UUID:
        value = parse_uuid(data)
        if value is None:
            self.fail("form")
        return value

    def to_representation(self, value: UUID) -> str:
        return str(value)


class StrictIntegerField(serializers.IntegerField):
    """A JSON integer: no text, no flag, no fraction."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class BoundedListField(serializers.ListField):
    """A list that is counted before its entries are looked at: they may be millions."""

    default_error_messages = {"too_long": "Must have no more than {max_length} entries."}

    def to_internal_value(self, data: Any) -> list[Any]:
        if isinstance(data, list) and self.max_length is not None and len(data) > self.max_length:
            self.fail("too_long", max_length=self.max_length)
        return list(super().to_internal_value(data))


@extend_schema_field({"type": "string", "format": "byte", "minLength": 4})
class CiphertextField(serializers.Field):
    """Standard base64 with padding, of at least one byte."""

    default_error_messages = {
        "form": "Must be standard base64 with padding (RFC 4648, section 4).",
        "empty": "Must hold at least one byte.",
    }

    def to_internal_value(self, data: Any) -> bytes:
        if not isinstance(data, str):
            self.fail("form")
        try:
            value = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            self.fail("form")
        if base64.b64encode(value).decode() != data:  # padding to spare, or spare bits set
            self.fail("form")
        if not value:
            self.fail("empty")
        return value

    def to_representation(self, value: bytes) -> str:
        return base64.b64encode(value).decode()


@extend_schema_field({"type": "string", "pattern": "^[0-9a-fA-F]{64}$"})
class Sha256HexField(serializers.Field):
    """A SHA-256 digest in 64 hexadecimal digits."""

    default_error_messages = {"form": "Must be 64 hexadecimal digits."}

    def to_internal_value(self, data: Any) -> bytes:
        if not isinstance(data, str) or _SHA256_HEX.fullmatch(data) is None:
            self.fail("form")
        return bytes.fromhex(data)

    def to_representation(self, value: bytes) -> str:
        return value.hex()
