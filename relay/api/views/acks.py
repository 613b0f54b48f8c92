"""`/v1/acks` (PROTOCOL section 4)."""

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from relay.api import requests, serializers
from relay.api.base import DEVICE, RelayView, caller_of, write_response
from relay.services.acknowledge import acknowledge


class AcksView(RelayView):
    """Acknowledge what was delivered and decrypted."""

    callers = {"POST": DEVICE}

    @extend_schema(
        operation_id="acknowledge",
        request=serializers.AcknowledgementSerializer,
        responses={
            200: serializers.AcknowledgedSerializer,
            "default": serializers.ProblemSerializer,
        },
    )
    def post(self, request: Request) -> HttpResponse:
        """Acknowledge envelopes of the calling device's own queue."""
        fields = serializers.AcknowledgementSerializer.parse(requests.json_body(request))
        answer = acknowledge(
            caller=caller_of(request),
            key=requests.idempotency_key(request),
            message_ids=fields["message_ids"],
        )
        return write_response(answer)
