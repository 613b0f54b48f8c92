"""`/v1/device/wake`: how the calling device is woken (PROTOCOL sections 6 and 7)."""

from django.http import HttpResponse
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework.request import Request

from relay.api import examples, requests, serializers
from relay.api.base import DEVICE, RelayView, caller_of, write_response
from relay.api.schema import Idempotency, example, operation
from relay.services.wakes import wake_delete, wake_put

_REGISTRATION = PolymorphicProxySerializer(
    component_name="WakeRegistration",
    serializers={
        "webpush": serializers.WebPushSerializer,
        "gateway": serializers.GatewaySerializer,
    },
    resource_type_field_name="transport",
)


class WakeView(RelayView):
    """How the calling device is woken."""

    callers = {"PUT": DEVICE, "DELETE": DEVICE}

    @operation(
        "wake_put",
        summary="Register how the calling device is woken",
        request=_REGISTRATION,
        answers={200: serializers.WakeSerializer},
        idempotency=Idempotency.OPTIONAL,
        examples=[
            example("Web Push or UnifiedPush", examples.WAKE_WEBPUSH),
            example("the deployment's gateway", examples.WAKE_GATEWAY),
            example("registered", examples.WAKE_REGISTERED, status=200),
        ],
    )
    def put(self, request: Request) -> HttpResponse:
        """Replaces what was registered before. It is kept encrypted, and never shown again.

        A wake carries no message data; it may be lost or repeated. A push service that answers
        404 or 410 ends the registration: `wake` of `GET /v1/device` is then null.
        """
        registration = serializers.parse_registration(requests.json_body(request))
        answer = wake_put(
            caller=caller_of(request),
            key=requests.idempotency_key(request),
            registration=registration,
        )
        return write_response(answer)

    @operation(
        "wake_delete",
        summary="Forget how the calling device is woken",
        answers={204: None},
        idempotency=Idempotency.OPTIONAL,
    )
    def delete(self, request: Request) -> HttpResponse:
        """204, also when nothing was registered."""
        answer = wake_delete(caller=caller_of(request), key=requests.idempotency_key(request))
        return write_response(answer)
