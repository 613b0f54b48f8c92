"""Logs are an allow-list (DESIGN rule 4.9): what is not declared cannot get in."""

import importlib
import json
import logging
import logging.config
import pkgutil
import re
from collections.abc import Iterator
from uuid import UUID

import pytest
from django.conf import settings
from django.db import connection

from config.kernel import logs, pseudonyms
from tests.client import make_device, new_key
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import code_of

CANARY = "canary-4f1d"
#: Names that no field of a line may have: what they would hold must not be there at all.
FORBIDDEN = re.compile(
    r"ciphertext|token|secret|key|sender|session|message|address|endpoint|handle|body|text|"
    r"device_id|recipient|credential|password|cursor|path|url|query|header|agent"
)
#: Names that only look like one.
INNOCENT = {"messages_per_second"}


class _Lines(logging.Handler):
    """Formats as the relay's own handler does, and keeps the lines."""

    def __init__(self) -> None:
        super().__init__()
        configurator = logging.config.DictConfigurator(settings.LOGGING)
        self.setFormatter(
            configurator.configure_formatter(dict(settings.LOGGING["formatters"]["allow_list"]))
        )
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(self.format(record))

    def documents(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.text]


@pytest.fixture
def lines() -> Iterator[_Lines]:
    """What goes to the log while a test runs."""
    handler = _Lines()
    root = logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


def _without_time(document: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in document.items() if name != "timestamp"}


# --- Our own events ----------------------------------------------------------------------------


def test_a_line_is_the_events_name_and_its_declared_fields(lines: _Lines) -> None:
    log = logs.event("tests.declared", "count", "what")
    log(count=3, what="a thing")
    [line] = lines.documents()
    assert _without_time(line) == {
        "level": "info", "event": "tests.declared", "count": 3, "what": "a thing",
    }  # fmt: skip


def test_what_was_not_declared_is_left_out_and_counted(lines: _Lines) -> None:
    log = logs.event("tests.declared", "count", "what")
    log(count=3, token=CANARY, ciphertext=CANARY.encode())
    [line] = lines.documents()
    assert _without_time(line) == {
        "level": "info", "event": "tests.declared", "count": 3, "undeclared": 2,
    }  # fmt: skip
    assert CANARY not in lines.text[0]


def test_an_event_is_declared_once() -> None:
    logs.event("tests.declared", "count", "what")
    logs.event("tests.declared", "what", "count")  # the same, imported again
    with pytest.raises(ValueError, match="declared twice"):
        logs.event("tests.declared", "count", "what", "token")


def test_a_value_is_cut_at_two_hundred_characters(lines: _Lines) -> None:
    log = logs.event("tests.long", "what")
    log(what="x" * 5_000)
    assert lines.documents()[0]["what"] == "x" * 200


def _import_everything() -> None:
    for app in ("config", "quotas", "idempotency", "outbox", "relay", "adminui"):
        package = importlib.import_module(app)
        for module in pkgutil.walk_packages(package.__path__, f"{app}."):
            if ".migrations" not in module.name and module.name != "config.wsgi":
                importlib.import_module(module.name)


def test_no_declared_field_is_named_like_something_that_must_not_be_there() -> None:
    _import_everything()
    ours = {name: fields for name, fields in logs.EVENTS.items() if not name.startswith("tests.")}
    assert len(ours) > 5
    named = {
        f"{name}: {field}"
        for name, fields in ours.items()
        for field in fields - INNOCENT
        if FORBIDDEN.search(field) and field != "request_id"
    }
    assert named == set()


# --- Everyone else's ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["some.library", "django.request", "django.db.backends", "relay.sub", "relay"]
)
def test_of_a_librarys_line_only_the_origin_stays(lines: _Lines, name: str) -> None:
    logging.getLogger(name).error("for %s", CANARY, extra={"token": CANARY}, stack_info=True)
    [line] = lines.documents()
    assert _without_time(line) == {"level": "error", "event": "library", "logger": name}


def test_of_an_exception_no_text_stays(lines: _Lines) -> None:
    _log_an_exception()
    [line] = lines.documents()
    assert (line["event"], line["logger"], line["level"]) == ("library", "some.library", "error")
    assert CANARY not in lines.text[0]


def test_of_an_exception_class_and_place_stay(lines: _Lines) -> None:
    _log_an_exception()
    [line] = lines.documents()
    assert re.fullmatch(r"ValueError at tests/rules/test_logs\.py:\d+", str(line["error"]))


def _log_an_exception() -> None:
    try:
        try:
            raise KeyError(CANARY)
        except KeyError as first:
            raise ValueError(CANARY) from first
    except ValueError:
        logging.getLogger("some.library").exception(CANARY)


def test_where_names_our_own_innermost_frame_and_no_text() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is what must not be seen
        UUID(CANARY)  # fails inside the standard library
    assert re.fullmatch(r"ValueError at tests/rules/test_logs\.py:\d+", logs.where(caught.value))
    assert logs.where(ValueError(CANARY)) == "ValueError"


def test_every_handler_of_the_relay_formats_by_the_allow_list() -> None:
    handlers = settings.LOGGING["handlers"]
    assert {handler["formatter"] for handler in handlers.values()} == {"allow_list"}
    assert settings.LOGGING["root"]["handlers"] == list(handlers)
    for logger in settings.LOGGING["loggers"].values():
        assert set(logger.get("handlers", [])) <= set(handlers)


# --- Requests ----------------------------------------------------------------------------------


def test_a_bug_whose_text_quotes_the_request_leaves_class_and_place(
    inside: InsideClient, lines: _Lines
) -> None:
    def fail(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        if 'INTO "relay_body"' in sql:
            raise ValueError(f"{CANARY} {params!r}")
        return execute(sql, params, many, context)

    recipient = make_device()
    with connection.execute_wrapper(fail):
        answer = inside.submit(make_device(), recipient, CANARY.encode(), key=CANARY)
    assert (answer.status_code, code_of(answer)) == (500, "INTERNAL")
    assert CANARY not in answer.text
    [failed] = [line for line in lines.documents() if line["event"] == "request.failed"]
    assert re.fullmatch(r"ValueError at [\w/]+\.py:\d+", str(failed["error"]))
    assert failed["request_id"] == answer.headers["X-Request-ID"]
    for text in lines.text:
        assert CANARY not in text
        assert str(recipient.id) not in text


def test_a_device_appears_under_a_name_of_the_day(inside: InsideClient, lines: _Lines) -> None:
    sender, recipient, message_id = make_device(), make_device(), UUID(int=7)
    inside.submit(sender, recipient, b"one", message_id=message_id)
    inside.submit(sender, recipient, b"two", message_id=message_id, key=new_key())
    [conflict] = [line for line in lines.documents() if line["event"] == "submit.conflict"]
    assert conflict["device"] == pseudonyms.of_device(recipient.id)
    assert re.fullmatch(r"[0-9a-f]{12}", str(conflict["device"]))
    today = pseudonyms.of_device(recipient.id, day="2026-06-01")
    assert today != pseudonyms.of_device(recipient.id, day="2026-06-02")
    assert today != pseudonyms.of_device(sender.id, day="2026-06-01")


def test_the_route_is_logged_and_never_the_path(inside: InsideClient, lines: _Lines) -> None:
    device = make_device()
    inside.call("PUT", f"/v1/devices/{device.id}", make_device(), json={})
    inside.http.get(f"/v1/{CANARY}", params={CANARY: CANARY})
    routes = [line["route"] for line in lines.documents() if line.get("event") == "request.handled"]
    assert routes == ["/v1/devices/<str:device_id>", "unmatched"]
    assert not any(CANARY in text or str(device.id) in text for text in lines.text)
