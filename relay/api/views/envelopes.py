"""`/v1/envelopes`: submit and pull (PROTOCOL sections 2 and 3)."""

import base64
import re
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from config.kernel import clock, problems
from config.kernel.addresses import client_address
from config.kernel.problems import FieldError, ValidationFailed
from quotas import rates
from quotas.selectors import current_limits
from relay.api import examples, requests, serializers
from relay.api.base import DEVICE, EITHER, RelayView, caller_of, read_response, write_response
from relay.api.schema import Idempotency, example, operation
from relay.selectors.pull import DEFAULT_LIMIT, MOST, Page, pull
from relay.services.submissions import Submission
from relay.services.submit import submit
from relay.services.submit_batch import submit_batch

_REFUSALS = (
    problems.EnvelopeTooLarge,
    problems.ProtocolVersionUnsupported,
    problems.TtlOutOfRange,
    problems.RecipientUnknown,
    problems.MessageIdConflict,
    problems.RecipientQuotaExceeded,
    problems.RateLimited,
)
_LIMIT = re.compile(r"[0-9]{1,3}", re.ASCII)


class EnvelopesView(RelayView):
    """Submit to any device's queue; pull from one's own."""

    callers = {"GET": DEVICE, "POST": EITHER}
    query = {"GET": frozenset({"limit", "cursor"})}

    @operation(
        "submit",
        summary="Submit one envelope",
        request=serializers.SubmissionSerializer,
        answers={200: serializers.AcceptedSerializer, 201: serializers.AcceptedSerializer},
        problems_met=_REFUSALS,
        idempotency=Idempotency.REQUIRED,
        examples=[
            example("an envelope for a day", examples.SUBMISSION),
            example("accepted", examples.ACCEPTED, status=201),
            example("a duplicate gets the first one's times", examples.ACCEPTED, status=200),
        ],
    )
    def post(self, request: Request) -> HttpResponse:
        """Any active device or provisioner may submit. 201 means committed.

        The same message_id with the same ciphertext is a duplicate (200), whatever became of
        the first one, until its receipt lapses.
        """
        fields = serializers.SubmissionSerializer.parse(requests.json_body(request))
        key = _charged_key(request, submits=1)
        answer = submit(caller=caller_of(request), key=key, submission=_submission(fields))
        return write_response(answer)

    @operation(
        "pull",
        summary="Pull a page of the calling device's queue",
        answers={200: serializers.PageSerializer},
        problems_met=(problems.CursorInvalid, problems.CursorStale),
        query=[
            OpenApiParameter(
                "limit", {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}
            ),
            OpenApiParameter("cursor", str, description="`next_cursor` of an earlier page"),
        ],
        examples=[example("a page of one", examples.PAGE, status=200)],
    )
    def get(self, request: Request) -> HttpResponse:
        """What is not acknowledged and not expired, oldest first. Deletes nothing.

        A page also ends at 4 MiB of ciphertext. `next_cursor` is always there, also on an
        empty page, and may be kept and polled from.
        """
        page = pull(
            device_id=caller_of(request).id,
            limit=_limit(request.GET.get("limit")),
            cursor=request.GET.get("cursor"),
        )
        return read_response(_page_document(page))


class BatchView(RelayView):
    """Submit up to a hundred envelopes at once."""

    callers = {"POST": EITHER}

    @operation(
        "submit_batch",
        summary="Submit up to a hundred envelopes",
        request=serializers.BatchSerializer,
        answers={200: serializers.BatchResultsSerializer, 422: serializers.BatchResultsSerializer},
        problems_met=(problems.RateLimited,),
        idempotency=Idempotency.REQUIRED,
        examples=[
            example("two envelopes", examples.BATCH),
            example("one of them accepted", examples.BATCH_RESULTS, status=200),
            example("every entry rejected", examples.BATCH_REJECTED, status=422),
        ],
    )
    def post(self, request: Request) -> HttpResponse:
        """Each entry is judged as if it had been sent by itself, in order, under one key.

        422 with the same body when every entry was rejected; nothing is kept under the key
        then. A rejected entry is sent again under a new key.
        """
        entries = serializers.BatchSerializer.parse(requests.json_body(request))["envelopes"]
        key = _charged_key(request, submits=len(entries))
        submissions = [_submission(fields) for fields in entries]
        answer = submit_batch(caller=caller_of(request), key=key, submissions=submissions)
        return write_response(answer)


def _charged_key(request: Request, *, submits: int) -> str:
    """The key, after the caller's rate was charged: in this order (PROTOCOL section 1)."""
    rates.charge(
        actor=caller_of(request).scope,
        address=client_address(request.META),
        limits=current_limits(),
        submits=submits,
    )
    return requests.required_idempotency_key(request)


def _submission(fields: dict[str, Any]) -> Submission:
    return Submission(**{"ttl_seconds": None, **fields})


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if _LIMIT.fullmatch(text) is None or not 1 <= int(text) <= MOST:
        error = FieldError("/limit", f"Must be a whole number from 1 to {MOST}.")
        raise ValidationFailed(errors=(error,))
    return int(text)


def _page_document(page: Page) -> dict[str, object]:
    return {
        "envelopes": [
            {
                "message_id": str(envelope.message_id),
                "protocol_version": envelope.protocol_version,
                "ciphertext": base64.b64encode(envelope.ciphertext).decode(),
                "size": envelope.size,
                "accepted_at": clock.rfc3339(envelope.accepted_at),
                "expires_at": clock.rfc3339(envelope.expires_at),
            }
            for envelope in page.envelopes
        ],
        "next_cursor": page.next_cursor,
        "has_more": page.has_more,
    }
