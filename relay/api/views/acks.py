"""`/v1/acks` (PROTOCOL section 4)."""

from django.http import HttpResponse
from rest_framework.request import Request

from relay.api import examples, requests, serializers
from relay.api.base import DEVICE, RelayView, caller_of, write_response
from relay.api.schema import Idempotency, example, operation
from relay.services.acknowledge import acknowledge


class AcksView(RelayView):
    """Acknowledge what was delivered and decrypted."""

    callers = {"POST": DEVICE}

    @operation(
        "acknowledge",
        summary="Acknowledge envelopes of the calling device's queue",
        request=serializers.AcknowledgementSerializer,
        answers={200: serializers.AcknowledgedSerializer},
        idempotency=Idempotency.OPTIONAL,
        examples=[
            example("two ids", examples.ACKNOWLEDGEMENT),
            example("one of them known", examples.ACKNOWLEDGED, status=200),
        ],
    )
    def post(self, request: Request) -> HttpResponse:
        """Says "delivered and decrypted", to the server alone. One result an id, in order.

        The answer for an id stays the same on repeat until its receipt lapses.
        """
        fields = serializers.AcknowledgementSerializer.parse(requests.json_body(request))
        answer = acknowledge(
            caller=caller_of(request),
            key=requests.idempotency_key(request),
            message_ids=fields["message_ids"],
        )
        return write_response(answer)
