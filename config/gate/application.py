"""The gate as a WSGI application (PEP 3333) around Django's."""

import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings
from django.utils.http import parse_header_parameters

from config.gate.intake import take_in
from config.gate.turns import Environ, Response, Turns
from config.kernel import logs, strict_json
from config.kernel.problems import Internal

#: Where the environ says for how many seconds the request waited for its turn.
WAITED = "relay.waited"

#: Needs neither PostgreSQL nor a turn: whether this process answers at all.
_WITHOUT_A_TURN = "/livez"
#: What a Content-Type that Django cannot read is taken for: some other one.
_UNREADABLE_TYPE = "application/octet-stream"

FAILED = logs.event("gate.failed", "request_id", "error", level=logging.ERROR)


class Gate:
    """Takes bodies in, gives requests their turn, and answers for what Django does not."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._turns = Turns(self._work, threads=int(settings.RELAY_WEB_THREADS))

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> list[bytes]:
        """Answer one request."""
        body = take_in(environ)
        _tidy(environ)
        if environ.get("PATH_INFO") == _WITHOUT_A_TURN:
            status, headers, content = self._work(environ, 0.0)
        else:
            status, headers, content = self._turns.take(environ)
        if not body.is_at_its_end:
            headers = [*headers, ("Connection", "close")]
        start_response(status, headers)
        return [content]

    def _work(self, environ: Environ, waited: float) -> Response:
        environ[WAITED] = waited
        try:
            return self._ask_django(environ)
        except Exception as error:
            return _internal_error(error)

    def _ask_django(self, environ: Environ) -> Response:
        started: list[Any] = []
        chunks = self._application(environ, lambda *head: started.append(head))
        try:
            content = b"".join(chunks)
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
        status, headers = started[-1][:2]
        return status, headers, content


def _tidy(environ: Environ) -> None:
    """Django reads this header before any of our code runs, and raises."""
    content_type = environ.get("CONTENT_TYPE")
    if content_type is None or ";" not in content_type:
        return
    try:
        parse_header_parameters(content_type)
    except (ValueError, LookupError):
        environ["CONTENT_TYPE"] = _UNREADABLE_TYPE


def _internal_error(error: Exception) -> Response:
    """The problem INTERNAL, for what failed outside Django's own handling of errors."""
    request_id = secrets.token_hex(8)
    FAILED(request_id=request_id, error=logs.where(error))
    content = strict_json.dumps(Internal().body(request_id)).encode()
    headers = [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(content))),
        ("Cache-Control", "no-store"),
        ("X-Request-ID", request_id),
    ]
    return "500 Internal Server Error", headers, content
