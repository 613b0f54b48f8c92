"""Answers to requests that reach no view, or fail outside one: problems like all others."""

import sys
from typing import Any

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.views import defaults

from config.kernel.problems import Forbidden, MalformedRequest, NotFound
from relay.api.problems import problem_of, problem_response, request_id_of

_CONSOLE = "/admin/"
#: What a browser shows; the rest is for programs.
_FOR_PEOPLE = (_CONSOLE, "/api/", "/static/")
_OTHER_HOST = (
    "The relay does not answer people under the host name of this address.\n\n"
    "Its operator sets the names in ALLOWED_HOSTS (docs/operations/settings.md).\n"
)
_NOT_VALID = "The request is not valid.\n"


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """A request that Django itself refused, such as one for a host that is not ours."""
    if request.path.startswith(_FOR_PEOPLE):
        text = _OTHER_HOST if isinstance(exception, DisallowedHost) else _NOT_VALID
        return HttpResponse(text, status=400, content_type="text/plain; charset=utf-8")
    return problem_response(MalformedRequest("The request is not valid."), request_id_of(request))


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403 outside a view of the REST face."""
    if request.path.startswith(_CONSOLE):
        return defaults.permission_denied(request, exception)
    return problem_response(Forbidden(), request_id_of(request))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """No such address."""
    if request.path.startswith(_CONSOLE):
        return defaults.page_not_found(request, exception)
    return problem_response(NotFound(), request_id_of(request))


def server_error(request: HttpRequest, **_: Any) -> HttpResponse:
    """An exception that no view handled; the database's own become a 503."""
    if request.path.startswith(_CONSOLE):
        return defaults.server_error(request)
    error = sys.exc_info()[1]
    request_id = request_id_of(request)
    problem = problem_of(error if isinstance(error, Exception) else Exception(), request_id)
    return problem_response(problem, request_id)
