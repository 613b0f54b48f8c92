"""What every view of the REST face shares: the order of the checks (PROTOCOL section 1)."""

from typing import Any, ClassVar, cast
from uuid import UUID

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.views import APIView

from config.kernel import strict_json
from config.kernel.problems import FieldError, Forbidden, MethodNotAllowed, ValidationFailed
from relay.api.fields import parse_uuid
from relay.api.requests import check_accept, check_query
from relay.callers import Caller, CallerKind
from relay.services.once import Answer

DEVICE = frozenset({CallerKind.DEVICE})
PROVISIONER = frozenset({CallerKind.PROVISIONER})
EITHER = DEVICE | PROVISIONER


class RelayView(APIView):
    """Route and method → authentication → kind of caller → media type, then the view's own.

    `callers` names who may use which method; a method that is not there does not exist. An
    empty set lets anyone in, without looking at a token.
    """

    callers: ClassVar[dict[str, frozenset[CallerKind]]] = {}
    query: ClassVar[dict[str, frozenset[str]]] = {}

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        method = "GET" if request.method == "HEAD" else str(request.method)
        if method not in self.callers:
            raise MethodNotAllowed(headers={"Allow": ", ".join(sorted(self.callers))})
        allowed = self.callers[method]
        if allowed and caller_of(request).kind not in allowed:
            raise Forbidden
        check_accept(request)
        check_query(request, self.query.get(method, frozenset()))

    @property
    def default_response_headers(self) -> dict[str, str]:
        """None: REST framework would tell Allow with every answer, and it belongs to a 405."""
        return {}

    @property
    def allowed_methods(self) -> list[str]:
        """For the Allow header."""
        return sorted(self.callers)


def caller_of(request: Request) -> Caller:
    """The authenticated caller."""
    return cast(Caller, request.user)


def path_uuid(name: str, value: str) -> UUID:
    """A path parameter that must be a UUID. Raises ValidationFailed."""
    parsed = parse_uuid(value)
    if parsed is None:
        error = FieldError(f"/{name}", "Must be a UUID in a text form of RFC 4122.")
        raise ValidationFailed(errors=(error,))
    return parsed


def read_response(document: dict[str, Any]) -> HttpResponse:
    """200 for a read, which nobody may keep."""
    return HttpResponse(
        strict_json.dumps(document),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def write_response(answer: Answer) -> HttpResponse:
    """The answer of a write, byte for byte; a replay says so."""
    response = HttpResponse(answer.body, status=answer.status, content_type="application/json")
    response["Cache-Control"] = "no-store"
    if answer.replayed:
        response["Idempotency-Replayed"] = "true"
    if not answer.body:
        del response["Content-Type"]
    return response
