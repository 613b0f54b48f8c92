"""Fields as the protocol reads them: strict, and never echoing what was sent."""

import base64
import binascii
import re
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric import ec
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from config.kernel import outgoing
from relay.wakes import endpoints

_UUID = re.compile(
    r"(?:urn:uuid:)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})",
    re.IGNORECASE | re.ASCII,
)
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
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


class Base64UrlField(serializers.Field):
    """So many bytes in base64url without padding, in its one canonical text."""

    size = 0
    default_error_messages = {"form": "Must be {size} bytes in base64url without padding."}

    def to_internal_value(self, data: Any) -> bytes:
        if not isinstance(data, str) or _BASE64URL.fullmatch(data) is None:
            self.fail("form", size=self.size)
        padded = data + "=" * (-len(data) % 4)
        try:
            value = base64.urlsafe_b64decode(padded)
        except binascii.Error:
            self.fail("form", size=self.size)
        if len(value) != self.size or base64.urlsafe_b64encode(value).decode() != padded:
            self.fail("form", size=self.size)
        return value

    def to_representation(self, value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


@extend_schema_field({"type": "string", "pattern": "^[A-Za-z0-9_-]{87}$"})
class PushKeyField(Base64UrlField):
    """`p256dh`: an uncompressed point of P-256 (RFC 8291, section 2.1)."""

    size = 65
    default_error_messages = {"point": "Must be an uncompressed point on the curve P-256."}

    def to_internal_value(self, data: Any) -> bytes:
        value = super().to_internal_value(data)
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), value)
        except ValueError:
            self.fail("point")
        return value


@extend_schema_field({"type": "string", "pattern": "^[A-Za-z0-9_-]{22}$"})
class PushAuthField(Base64UrlField):
    """`auth`: the authentication secret (RFC 8291, section 3.2)."""

    size = 16


@extend_schema_field({"type": "string", "format": "uri", "maxLength": outgoing.LONGEST_URL})
class EndpointField(serializers.Field):
    """Where a push service takes messages for one subscription."""

    default_error_messages = {
        "url": "Must be an https URL of at most 2,048 characters with a host name, and without "
        "user name and fragment.",
        "port": "The port must be 443, or 1024 or above.",
        "address": "This is not an address that the relay may call.",
    }

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("url")
        fault = endpoints.fault_of(data)
        if fault is not None:
            self.fail(fault)
        return data

    def to_representation(self, value: str) -> str:
        return value


@extend_schema_field({"type": "string", "minLength": 1, "maxLength": 512})
class OpaqueTextField(serializers.Field):
    """Text that means something to somebody else; kept as it is, white space included."""

    most = 512
    default_error_messages = {"form": "Must be text of 1 to 512 characters."}

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or not 1 <= len(data) <= self.most:
            self.fail("form")
        try:
            data.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            self.fail("form")
        return data

    def to_representation(self, value: str) -> str:
        return value
