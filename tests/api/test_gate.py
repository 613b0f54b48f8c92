"""What stands before Django: a type it cannot read, a turn that came too late, a bug of its own."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from config.gate.application import WAITED, Gate
from config.gate.intake import State, body_of
from config.middleware import MOST_WAITED
from tests.api.helpers import answered, assert_problem, exchange, raw_head
from tests.client import RelayClient, make_device
from tests.concurrency.inside import InsideClient

CANARY = "canary-of-the-gate"
UNREADABLE = ["a/b; c*0*=x''y", f"application/json; charset*=MESSAGE-{CANARY}''x", "a/b; a*=x"]


@pytest.mark.parametrize("content_type", UNREADABLE)
def test_a_type_that_django_cannot_read_is_refused_like_any_other(
    relay: RelayClient, content_type: str
) -> None:
    lines = [f"Content-Type: {content_type}", "Idempotency-Key: k", "Content-Length: 2"]
    for caller, code in ((None, "UNAUTHENTICATED"), (make_device(), "UNSUPPORTED_MEDIA_TYPE")):
        answer = answered(exchange(relay.url, raw_head(caller, *lines) + b"{}"))
        assert_problem(answer, code)
        assert answer.headers["X-Request-ID"]
    head = raw_head(None, lines[0], method="GET", path="/livez")
    assert answered(exchange(relay.url, head)).status_code == 200


def test_a_request_that_waited_too_long_for_its_turn_is_told_so() -> None:
    with InsideClient() as inside:
        transport: Any = inside.http._transport
        transport.app = _waited(transport.app, MOST_WAITED + 0.1)
        answer = inside.device(make_device())
        assert_problem(answer, "STORAGE_UNAVAILABLE")
        assert answer.headers["X-Request-ID"]


def _waited(app: Any, seconds: float) -> Any:
    def late(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return app({**environ, WAITED: seconds}, start_response)  # type: ignore[no-any-return]

    return late


def test_what_fails_outside_django_is_a_problem_as_well() -> None:
    def fails(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        raise ValueError(CANARY)

    started: list[Any] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/v1/device"}
    [content] = Gate(fails)(environ, lambda *head: started.append(head))
    [(status, headers)] = started
    named = dict(headers)
    assert status.startswith("500 ")
    assert named["Content-Type"] == "application/problem+json"
    assert json.loads(content)["code"] == "INTERNAL"
    assert json.loads(content)["request_id"] == named["X-Request-ID"]
    assert CANARY not in content.decode()


def test_a_body_is_taken_in_once() -> None:
    environ = {"REQUEST_METHOD": "GET"}
    assert body_of(environ) is body_of(environ)
    assert body_of(environ).state is State.WHOLE
