"""The console's middleware: all of it on the console's addresses, none of it on the rest."""

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.test import Client

from adminui import middleware
from tests.client import RelayClient


def test_the_rest_face_gets_nothing_of_the_console(relay: RelayClient) -> None:
    for method, path in (("GET", "/v1/instance"), ("GET", "/livez"), ("POST", "/v1/acks")):
        cookies = {"sessionid": "x" * 32, "csrftoken": "y" * 32}
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
        answer = relay.call(method, path, headers=headers)
        assert answer.status_code in (200, 401)
        assert "Set-Cookie" not in answer.headers
        assert "Content-Security-Policy" not in answer.headers


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the console's layers that a request enters, one entry a time."""
    entered: list[str] = []
    for name in dir(middleware):
        layer = getattr(middleware, name)
        if name.startswith("Console"):
            monkeypatch.setattr(layer, "__call__", _counting(name, layer.__call__, entered))
    return entered


def _counting(name: str, call: Callable[..., Any], entered: list[str]) -> Callable[..., Any]:
    def counting(layer: Any, request: Any) -> Any:
        entered.append(name)
        return call(layer, request)

    return counting


def test_a_request_of_the_rest_face_enters_one_layer_and_passes_all_eight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered = counted(monkeypatch)
    assert Client().get("/livez").status_code == 200
    assert entered == ["ConsoleSecurityMiddleware"]
    entered.clear()
    Client().get("/admin/login/")
    assert entered == [
        "ConsoleSecurityMiddleware",
        "ConsoleWhiteNoiseMiddleware",
        "ConsoleCSPMiddleware",
        "ConsoleSessionMiddleware",
        "ConsoleCsrfMiddleware",
        "ConsoleAuthenticationMiddleware",
        "ConsoleMessageMiddleware",
        "ConsoleFrameMiddleware",
    ]


def test_no_view_of_the_rest_face_is_asked_for_a_csrf_token() -> None:
    client = Client(enforce_csrf_checks=True)
    assert client.post("/v1/acks", "{}", content_type="application/json").status_code == 401
    assert client.post("/livez").status_code != 403


def test_settings_name_every_layer_once() -> None:
    named = [name for name in settings.MIDDLEWARE if name.startswith("adminui.middleware.")]
    ours = {name for name in dir(middleware) if name.startswith("Console")}
    assert sorted(named) == sorted(f"adminui.middleware.{name}" for name in ours)
    WSGIHandler()  # every one of them can be made
