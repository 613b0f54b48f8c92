"""Django's own middleware, at work on the addresses that people visit and on no other.

The REST face needs no session, no CSRF token and no security header of these, and must not
pay for them. Each layer here knows its addresses; a request for another one goes past it, and
past every layer inside it that would not have looked at it either. So a call of `/v1` costs
one comparison for all of them.

Subclasses and not a wrapper: Django's system checks look for them by class in MIDDLEWARE.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from csp.middleware import CSPMiddleware
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.csrf import CsrfViewMiddleware
from django.middleware.security import SecurityMiddleware
from whitenoise.middleware import WhiteNoiseMiddleware

Handler = Callable[[HttpRequest], HttpResponseBase]

_CONSOLE, _STATIC, _DOCUMENTS = "/admin/", "/static/", "/api/"


class _OnlyAt:
    """Mixed into a middleware: it sees requests for its addresses alone."""

    addresses: tuple[str, ...] = (_CONSOLE,)

    def __init__(self, get_response: Handler) -> None:
        super().__init__(get_response)  # type: ignore[call-arg]
        self._inside = get_response
        self._past = _past(get_response, self.addresses)

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.startswith(self.addresses):
            return super().__call__(request)  # type: ignore[misc]
        return self._past(request)


def _past(handler: Handler, addresses: tuple[str, ...]) -> Handler:
    """The first handler inside that may care about an address that is none of `addresses`.

    Django wraps each layer in a function that turns exceptions into answers, and names the
    layer in `__wrapped__`.
    """
    layer = getattr(handler, "__wrapped__", None)
    while isinstance(layer, _OnlyAt) and set(layer.addresses) <= set(addresses):
        handler = layer._inside
        layer = getattr(handler, "__wrapped__", None)
    return handler


class ConsoleSecurityMiddleware(_OnlyAt, SecurityMiddleware):
    """nosniff, referrer policy and opener policy."""

    addresses = (_CONSOLE, _STATIC, _DOCUMENTS)


class ConsoleWhiteNoiseMiddleware(_OnlyAt, WhiteNoiseMiddleware):
    """Static files, straight from the installed packages: no collectstatic needed."""

    addresses = (_STATIC,)

    def add_files(self, root: str | Path, prefix: str | None = None) -> None:
        """STATIC_ROOT is there only where an operator ran collectstatic."""
        if Path(root).is_dir():
            super().add_files(root, prefix=prefix)


class ConsoleCSPMiddleware(_OnlyAt, CSPMiddleware):
    """The content security policy."""

    addresses = (_CONSOLE, _DOCUMENTS)


class ConsoleSessionMiddleware(_OnlyAt, SessionMiddleware):
    """Admins' sessions."""


class ConsoleCsrfMiddleware(_OnlyAt, CsrfViewMiddleware):
    """CSRF tokens. Bearer tokens need none: a browser does not send them by itself."""

    def process_view(self, request: HttpRequest, *view: Any) -> Any:
        """Django calls this for every address, whatever `__call__` let past."""
        if request.path_info.startswith(self.addresses):
            return super().process_view(request, *view)
        return None


class ConsoleAuthenticationMiddleware(_OnlyAt, AuthenticationMiddleware):
    """`request.user`."""


class ConsoleMessageMiddleware(_OnlyAt, MessageMiddleware):
    """What a page says once, after a redirect."""


class ConsoleFrameMiddleware(_OnlyAt, XFrameOptionsMiddleware):
    """No page of ours is shown inside another."""

    addresses = (_CONSOLE, _DOCUMENTS)
