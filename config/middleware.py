"""What every request passes: its id, its time limit, its log line, its metrics.

Django's own middleware for sessions, CSRF and the like works on the console's addresses only
(adminui.middleware).
"""

import logging
import re
import secrets
import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from config import metrics
from config.gate.application import WAITED
from config.kernel import logs, watchdog
from config.kernel.database import forget_dead_connection
from config.kernel.problems import StorageUnavailable

_FIELDS = ("request_id", "method", "route", "status", "code", "milliseconds")
#: A request that was served is a line at LOG_LEVEL=DEBUG; one that was refused, failed or took
#: long always is one.
SERVED = logs.event("request.served", *_FIELDS, level=logging.DEBUG)
HANDLED = logs.event("request.handled", *_FIELDS)
SLOW_SECONDS = 1.0

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMiddleware:
    """The outermost layer of the application."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        request_id = _request_id(request)
        request.relay_request_id = request_id  # type: ignore[attr-defined]
        with watchdog.WATCHDOG.watching():
            response = self._get_response(request)
        response["X-Request-ID"] = request_id
        if not response.streaming and "Content-Length" not in response:
            response["Content-Length"] = str(len(response.content))
        self._account(request, response, time.perf_counter() - started)
        return response

    def _account(self, request: HttpRequest, response: HttpResponse, seconds: float) -> None:
        route = _route(request)
        method = request.method if request.method in _METHODS else "OTHER"
        code = getattr(response, "relay_code", "")
        metrics.REQUESTS.labels(method, route, str(response.status_code), code).inc()
        metrics.LATENCY.labels(method, route).observe(seconds)
        log = HANDLED if response.status_code >= 400 or seconds >= SLOW_SECONDS else SERVED
        log(
            request_id=request.relay_request_id,  # type: ignore[attr-defined]
            method=method,
            route=route,
            status=response.status_code,
            code=code,
            milliseconds=round(seconds * 1000, 1),
        )


#: Seconds after which a request that waited for its turn is told that it was in vain.
MOST_WAITED = 8.0


class TurnMiddleware:
    """Begins a request's turn, on a connection to PostgreSQL that is alive.

    What waited too long it ends: nobody may be there any more, and others wait behind it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.META.get(WAITED, 0.0) > MOST_WAITED:
            raise StorageUnavailable
        forget_dead_connection()
        return self._get_response(request)


def _request_id(request: HttpRequest) -> str:
    """The caller's own id when it is of the form, or a new one (PROTOCOL section 1)."""
    given = request.META.get("HTTP_X_REQUEST_ID", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _route(request: HttpRequest) -> str:
    """The route's pattern, never the path: that may hold an id."""
    match = request.resolver_match
    if match is None:
        return "unmatched"
    return "admin" if match.app_name == "admin" else f"/{match.route}"
