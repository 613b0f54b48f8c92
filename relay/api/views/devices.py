"""`/v1/devices/{device_id}`, `/v1/device` and `/v1/instance` (PROTOCOL section 6)."""

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from config.kernel.problems import Unauthenticated
from quotas.selectors import current_limits
from relay.api import requests, serializers
from relay.api.base import (
    DEVICE,
    PROVISIONER,
    RelayView,
    caller_of,
    path_uuid,
    read_response,
    write_response,
)
from relay.selectors.device import device_view
from relay.selectors.instance import instance_document, limits_document
from relay.services.devices import device_disable, device_put


class DevicesView(RelayView):
    """A device, as the deployment's identity service manages it."""

    callers = {"PUT": PROVISIONER, "DELETE": PROVISIONER}

    @extend_schema(
        operation_id="device_put",
        request=serializers.DevicePutSerializer,
        responses={
            200: serializers.DeviceStateSerializer,
            201: serializers.DeviceStateSerializer,
            "default": serializers.ProblemSerializer,
        },
    )
    def put(self, request: Request, device_id: str) -> HttpResponse:
        """Make a device, or replace its credential."""
        identity = path_uuid("device_id", device_id)
        fields = serializers.DevicePutSerializer.parse(requests.json_body(request))
        answer = device_put(
            caller=caller_of(request),
            key=requests.idempotency_key(request),
            device_id=identity,
            token_sha256=fields["token_sha256"],
        )
        return write_response(answer)

    @extend_schema(
        operation_id="device_disable",
        request=None,
        responses={
            202: serializers.DeviceStateSerializer,
            "default": serializers.ProblemSerializer,
        },
    )
    def delete(self, request: Request, device_id: str) -> HttpResponse:
        """Disable a device; its mail is removed in the background."""
        answer = device_disable(
            caller=caller_of(request),
            key=requests.idempotency_key(request),
            device_id=path_uuid("device_id", device_id),
        )
        return write_response(answer)


class DeviceView(RelayView):
    """The calling device."""

    callers = {"GET": DEVICE}

    @extend_schema(
        operation_id="device",
        responses={
            200: serializers.DeviceViewSerializer,
            "default": serializers.ProblemSerializer,
        },
    )
    def get(self, request: Request) -> HttpResponse:
        """What waits for the calling device, and what it may hold."""
        device_id = caller_of(request).id
        view = device_view(device_id=device_id)
        if view is None:
            raise Unauthenticated
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

    @extend_schema(
        operation_id="instance", responses={200: serializers.InstanceSerializer}, auth=[]
    )
    def get(self, request: Request) -> HttpResponse:
        """What this instance accepts and promises."""
        return read_response(instance_document())
