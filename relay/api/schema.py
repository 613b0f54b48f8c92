"""How a call describes itself in the OpenAPI schema.

Each view method says what it takes, what it answers, and which problems of the catalogue it
may meet; the rest (headers, media types, examples, one response for each status) follows from
that here. The tests hold every answer they see against the result.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    PolymorphicProxySerializer,
    extend_schema,
)
from rest_framework.serializers import Serializer

from config.kernel import problems
from config.kernel.problems import Problem
from relay.api import serializers

Problems = Iterable[type[Problem]]

#: What any call may meet: no database, a bug, an unknown query parameter, another media type.
ANY: tuple[type[Problem], ...] = (
    problems.ValidationFailed,
    problems.NotAcceptable,
    problems.StorageUnavailable,
    problems.Internal,
)
CALLER = (problems.Unauthenticated, problems.Forbidden)
BODY = (
    problems.MalformedRequest,
    problems.UnsupportedMediaType,
    problems.RequestTooLarge,
    problems.RateLimited,
)
KEY = (
    problems.IdempotencyKeyInvalid,
    problems.IdempotencyKeyReused,
    problems.IdempotencyInProgress,
)

_REQUEST_ID = "817e2c55f05cb82d"
#: Bare, where a server strips blanks at both ends and a quotation mark opens the other form; or
#: an sf-string of RFC 8941.
_KEY_PATTERN = r'^(?:[!#-~](?:[ -~]{0,253}[!-~])?|"(?:[ !#-\[\]-~]|\\["\\]){1,255}")$'
_KEY_TEXT = (
    "Names this request: 1 to 255 printable ASCII characters, bare or as a quoted structured "
    "field. The same key with the same request gets the first answer again, for at least 24 h."
)


class BearerScheme(OpenApiAuthenticationExtension):
    """The bearer tokens of devices and provisioners."""

    target_class = "relay.api.authentication.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        """An HTTP bearer scheme (RFC 6750)."""
        return {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "rld1.<device uuid>.<secret> or rlp1.<provisioner uuid>.<secret>",
        }


class Idempotency:
    """Whether a call takes an Idempotency-Key."""

    NONE: ClassVar[str] = ""
    OPTIONAL: ClassVar[str] = "optional"
    REQUIRED: ClassVar[str] = "required"


def operation(
    name: str,
    *,
    summary: str,
    answers: dict[int, type[Serializer[Any]] | None],
    request: type[Serializer[Any]] | PolymorphicProxySerializer | None = None,
    problems_met: Problems = (),
    idempotency: str = Idempotency.NONE,
    query: Iterable[OpenApiParameter] = (),
    examples: Iterable[OpenApiExample] = (),
    anyone: bool = False,
) -> Callable[[Any], Any]:
    """Describe one call. Its docstring is the description; None is an answer without a body."""
    met: list[type[Problem]] = [*ANY, *problems_met]
    parameters = list(query)
    if not anyone:
        met += CALLER
    if request is not None:
        met += BODY
    if idempotency:
        met += KEY
        required = idempotency == Idempotency.REQUIRED
        parameters.append(_key_parameter(required=required))
        if required:
            met.append(problems.IdempotencyKeyMissing)
    return extend_schema(
        operation_id=name,
        summary=summary,
        request=request,
        responses={**answers, **_problem_responses(met)},
        parameters=parameters,
        examples=list(examples),
        auth=[] if anyone else None,
    )


def refuse_unknown_members(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Say of every request body what StrictSerializer does (drf-spectacular's hook)."""
    from relay.api.serializers import StrictSerializer  # it comes from the views that import us

    schemas = result["components"]["schemas"]
    for kind in StrictSerializer.__subclasses__():
        schemas[kind.__name__.removesuffix("Serializer")]["additionalProperties"] = False
    return result


def example(name: str, value: Any, *, status: int | None = None) -> OpenApiExample:
    """A real request (no status) or answer."""
    if status is None:
        return OpenApiExample(name, value=value, request_only=True)
    return OpenApiExample(name, value=value, response_only=True, status_codes=[str(status)])


def _key_parameter(*, required: bool) -> OpenApiParameter:
    return OpenApiParameter(
        "Idempotency-Key",
        {"type": "string", "pattern": _KEY_PATTERN},
        OpenApiParameter.HEADER,
        required=required,
        description=_KEY_TEXT,
    )


def _problem_responses(met: Problems) -> dict[tuple[int, str], OpenApiResponse]:
    by_status: dict[int, list[type[Problem]]] = defaultdict(list)
    for problem in sorted(set(met), key=lambda problem: problem.code):
        by_status[problem.status].append(problem)
    return {
        (status, "application/problem+json"): OpenApiResponse(
            serializers.ProblemSerializer,
            description="; ".join(f"{problem.code}: {problem.title}" for problem in found),
            examples=[_problem_example(problem) for problem in found],
        )
        for status, found in sorted(by_status.items())
    }


def _problem_example(problem: type[Problem]) -> OpenApiExample:
    made = problem(retry_after=47) if problem is problems.RecipientQuotaExceeded else problem()
    return OpenApiExample(
        problem.code,
        value=made.body(_REQUEST_ID),
        response_only=True,
        status_codes=[str(problem.status)],
    )
