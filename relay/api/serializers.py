"""The shapes of requests and answers (PROTOCOL sections 2 to 6)."""

from functools import cache
from itertools import islice
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError

from config.kernel.problems import FieldError, ValidationFailed
from relay.api.fields import (
    BoundedListField,
    CiphertextField,
    EndpointField,
    OpaqueTextField,
    PushAuthField,
    PushKeyField,
    Sha256HexField,
    StrictIntegerField,
    UuidField,
)
from relay.services.submit_batch import MOST
from relay.wakes.registrations import Gateway, Registration, WebPush

_MOST_ERRORS = 50
_LONGEST_NAME = 64


class StrictSerializer(serializers.Serializer):
    """Refuses members it does not know, so that a misspelt one is never silently ignored."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        errors: dict[Any, Any] = {}
        if isinstance(data, dict):
            unknown = (name for name in data if name not in self.fields)
            errors = {name: ["Unknown member."] for name in islice(unknown, _MOST_ERRORS)}
        try:
            fields = super().to_internal_value(data)
        except ValidationError as invalid:
            found: Any = invalid.detail
            raise ValidationError({**errors, **found}) from invalid
        if errors:
            raise ValidationError(errors)
        return dict(fields)

    @classmethod
    def parse(cls, document: dict[str, Any]) -> dict[str, Any]:
        """The validated fields. Raises ValidationFailed, naming each field that is not valid."""
        try:
            return dict(_shared(cls).run_validation(document))
        except ValidationError as invalid:
            errors = tuple(_field_errors(invalid.detail, "")[:_MOST_ERRORS])
            raise ValidationFailed(errors=errors) from None


@cache
def _shared(kind: type[StrictSerializer]) -> StrictSerializer:
    """One of that kind for all requests and threads: validating changes nothing in it.

    DRF would copy every field for every request, which costs more than the validation.
    """
    return kind()


def _field_errors(detail: Any, pointer: str) -> list[FieldError]:
    """DRF's nested errors as a flat list with RFC 6901 pointers."""
    if isinstance(detail, dict):
        return [
            error
            for name, inner in detail.items()
            for error in _field_errors(inner, _below(pointer, name))
        ]
    if isinstance(detail, list) and not all(isinstance(item, ErrorDetail) for item in detail):
        return [
            error
            for index, inner in enumerate(detail)
            for error in _field_errors(inner, f"{pointer}/{index}")
        ]
    return [FieldError(pointer, str(message)) for message in detail]


def _below(pointer: str, name: Any) -> str:
    if name == "non_field_errors":
        return pointer
    token = str(name)[:_LONGEST_NAME].replace("~", "~0").replace("/", "~1")
    return f"{pointer}/{token}"


class SubmissionSerializer(StrictSerializer):
    """One envelope as its sender gives it."""

    recipient_device_id = UuidField()
    message_id = UuidField()
    protocol_version = StrictIntegerField(min_value=1, max_value=255)
    ciphertext = CiphertextField()
    ttl_seconds = StrictIntegerField(required=False)


class BatchSerializer(StrictSerializer):
    """Up to a hundred envelopes, each judged by itself."""

    envelopes = BoundedListField(child=SubmissionSerializer(), min_length=1, max_length=MOST)


class AcceptedSerializer(serializers.Serializer):
    """What a submit answers."""

    message_id = UuidField()
    accepted_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    ttl_seconds = serializers.IntegerField()


class RejectionSerializer(serializers.Serializer):
    """Why one entry of a batch was not accepted."""

    code = serializers.CharField()
    retryable = serializers.BooleanField()
    retry_after = serializers.IntegerField(required=False)


class BatchResultSerializer(serializers.Serializer):
    """What became of one entry of a batch."""

    message_id = UuidField()
    recipient_device_id = UuidField()
    status = serializers.ChoiceField(["accepted", "duplicate", "rejected"])
    accepted_at = serializers.DateTimeField(required=False)
    expires_at = serializers.DateTimeField(required=False)
    ttl_seconds = serializers.IntegerField(required=False)
    error = RejectionSerializer(required=False)


class BatchResultsSerializer(serializers.Serializer):
    """One result an entry, in their order."""

    results = BatchResultSerializer(many=True)


class PulledEnvelopeSerializer(serializers.Serializer):
    """One envelope of a page."""

    message_id = UuidField()
    protocol_version = serializers.IntegerField()
    ciphertext = CiphertextField()
    size = serializers.IntegerField()
    accepted_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()


class PageSerializer(serializers.Serializer):
    """A page of the caller's queue."""

    envelopes = PulledEnvelopeSerializer(many=True)
    next_cursor = serializers.CharField()
    has_more = serializers.BooleanField()


class AcknowledgementSerializer(StrictSerializer):
    """The message ids that the device has delivered and decrypted."""

    message_ids = BoundedListField(child=UuidField(), min_length=1, max_length=100)


class AcknowledgedResultSerializer(serializers.Serializer):
    """What became of one message id."""

    message_id = UuidField()
    status = serializers.ChoiceField(["acknowledged", "expired", "unknown"])


class AcknowledgedSerializer(serializers.Serializer):
    """One result an entry, in their order."""

    results = AcknowledgedResultSerializer(many=True)


class DevicePutSerializer(StrictSerializer):
    """A device's new credential: SHA-256 of the secret's 32 bytes."""

    token_sha256 = Sha256HexField()


class DeviceStateSerializer(serializers.Serializer):
    """A device as its provisioner sees it."""

    device_id = UuidField()
    state = serializers.ChoiceField(["active", "disabled"])


class WebPushSerializer(StrictSerializer):
    """A push subscription, as a browser or UnifiedPush hands it out."""

    transport = serializers.ChoiceField(["webpush"])
    endpoint = EndpointField()
    p256dh = PushKeyField()
    auth = PushAuthField()


class GatewaySerializer(StrictSerializer):
    """A name that the deployment's own gateway knows the device by."""

    transport = serializers.ChoiceField(["gateway"])
    handle = OpaqueTextField()


def parse_registration(document: dict[str, Any]) -> Registration:
    """The registration that a body asks for. Raises ValidationFailed.

    `transport` is judged first: without it nothing can be said about the other members.
    """
    transport = document.get("transport")
    if transport == "webpush":
        fields = WebPushSerializer.parse(document)
        return WebPush(fields["endpoint"], fields["p256dh"], fields["auth"])
    if transport == "gateway":
        return Gateway(GatewaySerializer.parse(document)["handle"])
    error = FieldError("/transport", 'Must be "webpush" or "gateway".')
    raise ValidationFailed(errors=(error,))


class PendingSerializer(serializers.Serializer):
    """What waits for the device."""

    count = serializers.IntegerField()
    bytes = serializers.IntegerField()


class StorageLimitsSerializer(serializers.Serializer):
    """The storage limits of this instance."""

    envelope_bytes = serializers.IntegerField()
    pending_count = serializers.IntegerField()
    pending_bytes = serializers.IntegerField()


class WakeSerializer(serializers.Serializer):
    """How the device is woken; its address is never shown again."""

    transport = serializers.ChoiceField(["gateway", "webpush"])


class DeviceViewSerializer(serializers.Serializer):
    """A device as it sees itself."""

    device_id = UuidField()
    pending = PendingSerializer()
    limits = StorageLimitsSerializer()
    wake = WakeSerializer(allow_null=True)


class TtlSerializer(serializers.Serializer):
    """Times to live, in seconds."""

    minimum = serializers.IntegerField()
    default = serializers.IntegerField()
    maximum = serializers.IntegerField()


class StatementSerializer(serializers.Serializer):
    """What the relay says about the data it keeps."""

    retention = serializers.CharField()
    backups = serializers.CharField()
    metadata = serializers.CharField()


class InstanceSerializer(serializers.Serializer):
    """What this instance accepts and promises."""

    name = serializers.CharField()
    protocol_versions = serializers.ListField(child=serializers.IntegerField())
    ttl = TtlSerializer()
    limits = StorageLimitsSerializer()
    receipt_days = serializers.IntegerField()
    statement = StatementSerializer()


class FieldErrorSerializer(serializers.Serializer):
    """What is wrong with one field."""

    pointer = serializers.CharField()
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer):
    """An error (RFC 9457)."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    retryable = serializers.BooleanField()
    retry_after = serializers.IntegerField(required=False)
    request_id = serializers.CharField()
    errors = FieldErrorSerializer(many=True, required=False)  # type: ignore[assignment]
