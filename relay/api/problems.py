"""From exceptions to `application/problem+json` (RFC 9457, PROTOCOL section 1)."""

import logging
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework import exceptions

from config.kernel import database, logs, problems, strict_json
from config.kernel.problems import Problem

MEDIA_TYPE = "application/problem+json"

FAILED = logs.event("request.failed", "request_id", "error", level=logging.ERROR)
STORAGE = logs.event("storage.unavailable", "request_id", "error", level=logging.WARNING)

_BY_CLASS: dict[type[BaseException], type[Problem]] = {
    Http404: problems.NotFound,
    exceptions.NotFound: problems.NotFound,
    exceptions.MethodNotAllowed: problems.MethodNotAllowed,
    exceptions.NotAcceptable: problems.NotAcceptable,
    exceptions.UnsupportedMediaType: problems.UnsupportedMediaType,
    exceptions.NotAuthenticated: problems.Unauthenticated,
    exceptions.AuthenticationFailed: problems.Unauthenticated,
    exceptions.PermissionDenied: problems.Forbidden,
    exceptions.ParseError: problems.MalformedRequest,
}


def exception_handler(error: Exception, context: dict[str, Any]) -> HttpResponse:
    """DRF's hook: every exception of a view becomes a problem of the catalogue."""
    request = context["request"]
    return problem_response(problem_of(error, request_id_of(request)), request_id_of(request))


def problem_of(error: Exception, request_id: str) -> Problem:
    """The problem for an exception. What we did not expect is INTERNAL, and logged."""
    if isinstance(error, Problem):
        return error
    known = _BY_CLASS.get(type(error))
    if known is not None:
        return known()
    if isinstance(error, DatabaseError | InterfaceError):
        unavailable = database.storage_problem(error)
        if unavailable is not None:
            STORAGE(request_id=request_id, error=logs.where(error))
            return unavailable
    FAILED(request_id=request_id, error=logs.where(error))
    return problems.Internal()


def problem_response(problem: Problem, request_id: str) -> HttpResponse:
    """The response that says it."""
    response = HttpResponse(
        strict_json.dumps(problem.body(request_id)),
        status=problem.status,
        content_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", **problem.headers},
    )
    if problem.retry_after is not None:
        response["Retry-After"] = str(problem.retry_after)
    response.relay_code = problem.code  # type: ignore[attr-defined]  # for the log and metrics
    return response


def request_id_of(request: Any) -> str:
    """The id that RequestMiddleware gave to this request."""
    http: HttpRequest = getattr(request, "_request", request)
    return str(getattr(http, "relay_request_id", ""))
