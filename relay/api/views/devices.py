"""`/v1/devices/{device_id}`, `/v1/device` and `/v1/instance` (PROTOCOL section 6)."""

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from config.kernel import problems
from quotas.selectors import current_limits
from relay.api import examples, requests, serializers
from relay.api.base import (
    DEVICE,
    PROVISIONER,
    RelayView,
    caller_of,
    path_uuid,
    read_response,
    write_response,
)
from relay.api.schema import Idempotency, example, operation
from relay.selectors.device import device_view
from relay.selectors.instance import instance_document, limits_document
from relay.services.devices import device_disable, device_put

_DEVICE_ID = OpenApiParameter("device_id", OpenApiTypes.UUID, OpenApiParameter.PATH)


class DevicesView(RelayView):
    """A device, as the deployment's identity service manages it."""

    callers = {"PUT": PROVISIONER, "DELETE": PROVISIONER}

    @operation(
        "device_put",
        summary="Make a device, or replace its credential",
        request=serializers.DevicePutSerializer,
        answers={200: serializers.DeviceStateSerializer, 201: serializers.DeviceStateSerializer},
        problems_met=(problems.DeviceDisabled,),
        idempotency=Idempotency.OPTIONAL,
        query=[_DEVICE_ID],
        examples=[
            example("a credential", examples.DEVICE_PUT),
            example("made", examples.DEVICE_ACTIVE, status=201),
            example("credential replaced", examples.DEVICE_ACTIVE, status=200),
        ],
    )
    def put(self, request: Request, device_id: str) -> HttpResponse:
        """201 for a new device, 200 when its credential was replaced.

        A new credential works at once; a replaced one stops within 5 seconds.
        """
        identity = path_uuid("device_id", device_id)
        fields = serializers.DevicePutSerializer.parse(requests.json_body(request))
        answer = device_put(
            caller=caller_of(request),
            key=requests.idempotency_key(request),
            device_id=identity,
            token_sha256=fields["token_sha256"],
        )
        return write_response(answer)

    @operation(
        "device_disable",
        summary="Disable a device",
        answers={202: serializers.DeviceStateSerializer},
        problems_met=(problems.NotFound,),
        idempotency=Idempotency.OPTIONAL,
        query=[_DEVICE_ID],
        examples=[example("disabled", examples.DEVICE_DISABLED, status=202)],
    )
    def delete(self, request: Request, device_id: str) -> HttpResponse:
        """It is no recipient any more at once; its mail is removed in the background."""
        answer = device_disable(
            caller=caller_of(request),
            key=requests.idempotency_key(request),
            device_id=path_uuid("device_id", device_id),
        )
        return write_response(answer)


class DeviceView(RelayView):
    """The calling device."""

    callers = {"GET": DEVICE}

    @operation(
        "device",
        summary="The calling device",
        answers={200: serializers.DeviceViewSerializer},
        examples=[example("three envelopes wait", examples.DEVICE_VIEW, status=200)],
    )
    def get(self, request: Request) -> HttpResponse:
        """What waits for the calling device, and what it may hold."""
        device_id = caller_of(request).id
        view = device_view(device_id=device_id)
        if view is None:
            raise problems.Unauthenticated
        wake = view.wake_transport
        document = {
            "device_id": str(device_id),
            "pending": {"count": view.pending_count, "bytes": view.pending_bytes},
            "limits": limits_document(current_limits()),
            "wake": None if wake is None else {"transport": wake},
        }
        return read_response(document)


class InstanceView(RelayView):
    """This instance, for anyone."""

    callers = {"GET": frozenset()}

    @operation(
        "instance",
        summary="This instance",
        answers={200: serializers.InstanceSerializer},
        anyone=True,
    )
    def get(self, request: Request) -> HttpResponse:
        """What this instance accepts and promises."""
        return read_response(instance_document())
