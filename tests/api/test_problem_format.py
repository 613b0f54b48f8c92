"""Every refusal is one kind of document (PROTOCOL section 1, "Errors"), on every address."""

import re
from collections.abc import Callable
from uuid import uuid4

import httpx
import pytest

from config.kernel.problems import catalogue
from tests.api.helpers import (
    CATALOGUE,
    assert_problem,
    envelope_for,
    post,
    query,
    set_limits,
    untouched,
    without_request_id,
)
from tests.client import Party, RelayClient, make_device, make_provisioner

# --- The catalogue ----------------------------------------------------------------------------


def test_the_relay_knows_exactly_the_codes_of_the_protocol() -> None:
    known = {problem.code: (problem.status, problem.retryable) for problem in catalogue()}
    assert known == CATALOGUE


@pytest.mark.parametrize("code", CATALOGUE)
def test_the_type_of_every_code_leads_to_its_place_on_the_page_that_the_relay_serves(
    relay: RelayClient, code: str
) -> None:
    page = relay.http.get("/api/errors")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    fragment = code.lower().replace("_", "-")
    assert len(re.findall(rf'id="{fragment}"', page.text)) == 1


def test_the_page_of_errors_names_each_code_with_its_status(relay: RelayClient) -> None:
    page = relay.http.get("/api/errors").text
    for code, (status, _) in CATALOGUE.items():
        section = page.split(f'id="{code.lower().replace("_", "-")}"')[1].split("id=")[0]
        assert code in section
        assert str(status) in section


# --- Each code, as a client meets it ----------------------------------------------------------


def _conflict(relay: RelayClient, device: Party) -> httpx.Response:
    message_id = uuid4()
    relay.submit(device, device, b"one", message_id=message_id)
    return relay.submit(device, device, b"two", message_id=message_id)


def _reused(relay: RelayClient, device: Party) -> httpx.Response:
    relay.submit(device, device, key="k")
    return relay.submit(device, device, key="k")


def _rate(relay: RelayClient, device: Party) -> httpx.Response:
    set_limits(actor_rate=1, window_seconds=3600)
    relay.submit(device, device)
    return relay.submit(device, device)


def _quota(relay: RelayClient, device: Party) -> httpx.Response:
    set_limits(pending_count=10)
    for _ in range(10):
        relay.submit(device, device).raise_for_status()
    return relay.submit(device, device)


def _disabled(relay: RelayClient, device: Party) -> httpx.Response:
    provisioner, path = make_provisioner(), f"/v1/devices/{device.id}"
    relay.call("DELETE", path, provisioner)
    return relay.call("PUT", path, provisioner, json={"token_sha256": "0" * 64})


def _key_invalid(relay: RelayClient, device: Party) -> httpx.Response:
    return relay.submit(device, device, key='"')


def _key_missing(relay: RelayClient, device: Party) -> httpx.Response:
    return relay.call("POST", "/v1/envelopes", device, json=envelope_for(device))


MEETINGS: dict[str, Callable[[RelayClient, Party], httpx.Response]] = {
    "MALFORMED_REQUEST": lambda relay, device: post(relay, device, b"{"),
    "VALIDATION_FAILED": lambda relay, device: post(relay, device, {}),
    "IDEMPOTENCY_KEY_MISSING": _key_missing,
    "IDEMPOTENCY_KEY_INVALID": _key_invalid,
    "CURSOR_INVALID": lambda relay, device: relay.pull(device, cursor="x"),
    "UNAUTHENTICATED": lambda relay, device: relay.call("GET", "/v1/device"),
    "FORBIDDEN": lambda relay, device: relay.call("DELETE", f"/v1/devices/{device.id}", device),
    "RECIPIENT_UNKNOWN": lambda relay, device: relay.submit(device, uuid4()),
    "NOT_FOUND": lambda relay, device: relay.call("GET", "/v1/nothing", device),
    "METHOD_NOT_ALLOWED": lambda relay, device: relay.call("PUT", "/v1/acks", device),
    "NOT_ACCEPTABLE": lambda relay, device: relay.call(
        "GET", "/v1/device", device, headers={"Accept": "text/html"}
    ),
    "MESSAGE_ID_CONFLICT": _conflict,
    "DEVICE_DISABLED": _disabled,
    "ENVELOPE_TOO_LARGE": lambda relay, device: relay.submit(device, device, b"x" * 65_537),
    "REQUEST_TOO_LARGE": lambda relay, device: post(relay, device, b" " * (8 * 2**20 + 1)),
    "UNSUPPORTED_MEDIA_TYPE": lambda relay, device: post(
        relay, device, {}, headers={"Content-Type": "text/plain"}
    ),
    "IDEMPOTENCY_KEY_REUSED": _reused,
    "PROTOCOL_VERSION_UNSUPPORTED": lambda relay, device: relay.submit(
        device, device, protocol_version=2
    ),
    "TTL_OUT_OF_RANGE": lambda relay, device: relay.submit(device, device, ttl_seconds=59),
    "RATE_LIMITED": _rate,
    "RECIPIENT_QUOTA_EXCEEDED": _quota,
}


@pytest.mark.parametrize("code", MEETINGS)
def test_a_refusal_is_a_problem_document_with_all_its_members(
    relay: RelayClient, code: str
) -> None:
    answer = MEETINGS[code](relay, make_device())
    assert_problem(answer, code)
    assert "no-store" in answer.headers["cache-control"]


def test_the_codes_not_met_here_need_a_race_a_stale_cursor_a_bug_or_a_dead_database() -> None:
    elsewhere = {"IDEMPOTENCY_IN_PROGRESS", "CURSOR_STALE", "INTERNAL", "STORAGE_UNAVAILABLE"}
    assert set(CATALOGUE) - set(MEETINGS) == elsewhere


def test_a_bug_answers_internal_and_shows_no_trace(relay: RelayClient) -> None:
    device = make_device()
    query("ALTER TABLE relay_body RENAME TO relay_body_gone")
    try:
        answers = [relay.pull(device), relay.submit(device, device)]
    finally:
        query("ALTER TABLE relay_body_gone RENAME TO relay_body")
    for answer in answers:
        assert_problem(answer, "INTERNAL")
        assert not re.search("relay_body|Traceback|psycopg|Error\\b|SELECT", answer.text)
    assert relay.pull(device).json()["envelopes"] == []


def test_after_a_bug_the_same_key_stores_the_envelope_once(relay: RelayClient) -> None:
    device = make_device()
    body = envelope_for(device)
    query("ALTER TABLE relay_body RENAME TO relay_body_gone")
    try:
        with pytest.raises(httpx.HTTPStatusError):
            post(relay, device, body, key="k").raise_for_status()
    finally:
        query("ALTER TABLE relay_body_gone RENAME TO relay_body")
    answer = post(relay, device, body, key="k")
    assert answer.status_code == 201
    assert "idempotency-replayed" not in answer.headers
    assert len(relay.walk(device)) == 1


# --- The quota's answer tells nothing ---------------------------------------------------------


def test_a_full_queue_does_not_say_whether_by_count_or_by_bytes(relay: RelayClient) -> None:
    sender, by_count, by_bytes = make_device(), make_device(), make_device()
    set_limits(pending_count=10, envelope_bytes=2**20, pending_bytes=2**20)
    for _ in range(10):
        relay.submit(sender, by_count, b"x").raise_for_status()
    relay.submit(sender, by_bytes, b"x" * 2**20).raise_for_status()
    answers = [relay.submit(sender, each, b"x") for each in (by_count, by_bytes)]
    for answer in answers:
        assert_problem(answer, "RECIPIENT_QUOTA_EXCEEDED")
    assert without_request_id(answers[0]) == without_request_id(answers[1])
    assert set(answers[0].headers) == set(answers[1].headers)


def test_the_time_to_retry_after_a_full_queue_is_jittered(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(pending_count=10)
    for _ in range(10):
        relay.submit(sender, recipient).raise_for_status()
    refusals = [relay.submit(sender, recipient) for _ in range(25)]
    times = {assert_problem(each, "RECIPIENT_QUOTA_EXCEEDED")["retry_after"] for each in refusals}
    assert len(times) > 1


# --- Routes and methods -----------------------------------------------------------------------

ROUTES = {
    "/v1/envelopes": {"GET", "POST"},
    "/v1/acks": {"POST"},
    "/v1/devices/00000000-0000-4000-8000-000000000000": {"PUT", "DELETE"},
    "/v1/device": {"GET"},
    "/v1/instance": {"GET"},
}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_method_that_a_route_does_not_have_is_405_and_tells_which_it_has(
    relay: RelayClient, path: str
) -> None:
    for method in METHODS:
        if method in ROUTES[path]:
            continue
        with untouched():
            answer = relay.call(method, path)
        assert_problem(answer, "METHOD_NOT_ALLOWED")
        allowed = {name.strip() for name in answer.headers["allow"].split(",")}
        assert allowed - {"HEAD", "OPTIONS"} == ROUTES[path]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1", "/v1/", "/v1/nothing", "/v2/envelopes", "/V1/envelopes", "/v1/Envelopes"),
        *("/v1//envelopes", "/v1/envelopes/", "/v1/acks/", "/v1/device/", "/v1/instance/"),
        *("/v1/devices", "/v1/devices/", "/v1/devices/a/b", "/v1/envelopes/x/y", "/v1/ack"),
        *(
            "/v1/envelopes%2Fx",
            "/v1/%00",
            "/v1/%ff%fe",
            "/v1/../v1/x",
            "/livez/",
            "/v1/envelopes;x",
        ),
    ],
)
def test_an_address_where_there_is_nothing_is_404_and_never_a_redirect(
    relay: RelayClient, path: str
) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        with untouched():
            assert_problem(relay.call(method, path), "NOT_FOUND")


def test_head_answers_as_get_without_a_body(relay: RelayClient) -> None:
    device = make_device()
    for path in ("/v1/envelopes", "/v1/device", "/v1/instance"):
        answer = relay.call("HEAD", path, device)
        assert (answer.status_code, answer.content) == (200, b"")


# --- What the client takes --------------------------------------------------------------------


@pytest.mark.parametrize(
    "accept",
    [
        *("application/json", "*/*", "application/*", "APPLICATION/JSON", ""),
        *("text/html, application/json;q=0.5", "text/html;q=1, */*;q=0.1"),
        *("application/problem+json", "application/json; charset=utf-8", "application/json;q=1.0"),
    ],
)
def test_a_client_that_takes_json_is_served(relay: RelayClient, accept: str) -> None:
    device = make_device()
    answer = relay.call("GET", "/v1/device", device, headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "accept",
    [
        *("text/html", "text/*", "application/xml", "image/png, text/plain", "application/jsonp"),
        *("application/json;q=0", "*/*;q=0", "application/json;q=0.000", "text/html, */*;q=0.0"),
    ],
)
def test_a_client_that_takes_no_json_is_refused_before_anything_happens(
    relay: RelayClient, accept: str
) -> None:
    device = make_device()
    with untouched():
        for method, path in (("GET", "/v1/envelopes"), ("GET", "/v1/instance")):
            answer = relay.call(method, path, device, headers={"Accept": accept})
            assert_problem(answer, "NOT_ACCEPTABLE")
        answer = post(relay, device, envelope_for(device), headers={"Accept": accept})
        assert_problem(answer, "NOT_ACCEPTABLE")
