"""What every request passes: its id, its time limit, its log line, its metrics.

Django's own middleware for sessions, CSRF and the like works on the console's addresses only
(adminui.middleware).
"""

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from config import metrics
from config.kernel import logs, watchdog

_FIELDS = ("request_id", "method", "route", "status", "code", "milliseconds")
#: A request that was served is a line at LOG_LEVEL=DEBUG; one that was refused, failed or took
#: long always is one.
SERVED = logs.event("request.served", *_FIELDS, level=logging.DEBUG)
HANDLED = logs.event("request.handled", *_FIELDS)
SLOW_SECONDS = 1.0

#: Bytes of a refused request that are read and thrown away at most: as many as a request may
#: have. Whoever announces more is told so at once, and the connection ends.
MOST_DRAINED = 8 * 2**20

#: A body that never comes takes a thread; these may take a quarter of them.
_DRAINS = threading.BoundedSemaphore(max(1, int(settings.RELAY_WEB_THREADS) // 4))

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
        if not _drain(request):
            response["Connection"] = "close"
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


def _drain(request: HttpRequest) -> bool:
    """Read what a refusal left unread; False when there is more than we care to.

    A client may send everything before it reads. If the server closed on it meanwhile, the
    answer would be lost, and so would the next request on that connection.
    """
    was_read = getattr(request, "relay_body_read", False) or getattr(
        request, "_read_started", False
    )
    if request.method in ("GET", "HEAD") or was_read:
        return True
    announced = request.META.get("CONTENT_LENGTH") or ""
    chunked = "HTTP_TRANSFER_ENCODING" in request.META
    left = int(announced) if announced.isdecimal() else (MOST_DRAINED if chunked else 0)
    if left == 0:
        return True
    if left > MOST_DRAINED or not _DRAINS.acquire(blocking=False):
        return False
    try:
        return _read_away(request.META["wsgi.input"], left) or not chunked
    finally:
        _DRAINS.release()


def _read_away(stream: Any, left: int) -> bool:
    """Whether `left` bytes came and went."""
    try:
        while left > 0 and (part := stream.read(min(left, 65_536))):
            left -= len(part)
    except OSError:
        return False
    return left == 0


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
