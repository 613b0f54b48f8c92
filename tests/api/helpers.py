"""What the black-box checks share: the catalogue by hand, snapshots, policies, raw sockets."""

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import httpx
from django.db import connection

from config.kernel.database import durable_transaction
from quotas.services import limits_write_version
from relay.services.retention import retention_write_version
from relay.services.sweeping import Pace, sweep_all
from tests.client import Party, RelayClient, base64_of, new_key
from tests.conftest import RelayProcess

#: The table of PROTOCOL section 1, and DEVICE_DISABLED of section 6: (status, retryable).
CATALOGUE = {
    "MALFORMED_REQUEST": (400, False),
    "VALIDATION_FAILED": (400, False),
    "IDEMPOTENCY_KEY_MISSING": (400, False),
    "IDEMPOTENCY_KEY_INVALID": (400, False),
    "CURSOR_INVALID": (400, False),
    "UNAUTHENTICATED": (401, False),
    "FORBIDDEN": (403, False),
    "RECIPIENT_UNKNOWN": (404, False),
    "NOT_FOUND": (404, False),
    "METHOD_NOT_ALLOWED": (405, False),
    "NOT_ACCEPTABLE": (406, False),
    "MESSAGE_ID_CONFLICT": (409, False),
    "DEVICE_DISABLED": (409, False),
    "IDEMPOTENCY_IN_PROGRESS": (409, True),
    "CURSOR_STALE": (410, False),
    "ENVELOPE_TOO_LARGE": (413, False),
    "REQUEST_TOO_LARGE": (413, False),
    "UNSUPPORTED_MEDIA_TYPE": (415, False),
    "IDEMPOTENCY_KEY_REUSED": (422, False),
    "PROTOCOL_VERSION_UNSUPPORTED": (422, False),
    "TTL_OUT_OF_RANGE": (422, False),
    "RATE_LIMITED": (429, True),
    "RECIPIENT_QUOTA_EXCEEDED": (429, True),
    "INTERNAL": (500, True),
    "STORAGE_UNAVAILABLE": (503, True),
}
MEMBERS = {"type", "title", "status", "code", "detail", "retryable", "request_id"}
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
#: Stands for a member that is to be left out.
OMIT: Any = object()
JSON = {"Content-Type": "application/json"}


def assert_problem(
    response: httpx.Response, code: str, *, pointers: set[str] | None = None
) -> dict[str, Any]:
    """The response is this problem, whole and in shape (PROTOCOL section 1, "Errors")."""
    status, retryable = CATALOGUE[code]
    assert (response.status_code, response.headers["content-type"]) == (
        status,
        "application/problem+json",
    ), response.text[:300]
    problem: dict[str, Any] = response.json()
    assert problem["code"] == code, problem
    expected = set(MEMBERS)
    expected |= {"retry_after"} if retryable else set()
    expected |= {"errors"} if code == "VALIDATION_FAILED" else set()
    assert set(problem) == expected
    assert problem["type"] == "/api/errors#" + code.lower().replace("_", "-")
    assert problem["status"] == status
    assert problem["retryable"] is retryable
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    if retryable:
        assert type(problem["retry_after"]) is int
        assert problem["retry_after"] >= 1
        assert response.headers["retry-after"] == str(problem["retry_after"])
    else:
        assert "retry-after" not in response.headers
    for error in problem.get("errors", []):
        assert set(error) == {"pointer", "detail"}
        assert error["detail"]
    if pointers is not None:
        assert {error["pointer"] for error in problem["errors"]} == pointers
    return problem


def without_request_id(response: httpx.Response) -> dict[str, Any]:
    """The problem document but for its request_id, and for a jittered retry_after."""
    return {
        name: value
        for name, value in response.json().items()
        if name not in ("request_id", "retry_after")
    }


# --- Policies, sweeps and the clock -----------------------------------------------------------


def set_limits(**changes: Any) -> None:
    """A new version of the limits, in force at once."""
    with durable_transaction():
        limits_write_version(**changes)


def set_retention(**changes: Any) -> None:
    """A new version of the retention, in force at once."""
    with durable_transaction():
        retention_write_version(**changes)


def sweep() -> None:
    """Every sweep once, as the background processes would run it."""
    pace = Pace(batch=500, rows_per_second=1_000_000, pause_seconds=0)
    sweep_all(pace=pace, stop=lambda: False, most_seconds=30)


def moment(text: str) -> datetime:
    """A time of the protocol's form as a datetime."""
    assert RFC3339.fullmatch(text), text
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def text_of(at: datetime) -> str:
    """A datetime in the protocol's form."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# --- The database, seen from outside the relay ------------------------------------------------


def query(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Rows of the database."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall()) if cursor.description else []


def tables() -> list[str]:
    """Every table there is."""
    return [
        name
        for (name,) in query(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
        )
    ]


def snapshot() -> dict[str, tuple[int, str]]:
    """Of every table: how many rows, and a digest of all they hold."""
    one = (
        "SELECT '{name}', count(*), md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) "
        'FROM "{name}" AS t'
    )
    statement = " UNION ALL ".join(one.format(name=name) for name in tables())
    return {name: (count, digest) for name, count, digest in query(statement)}


@contextmanager
def untouched(*but: str) -> Iterator[None]:
    """What runs inside changes no row of any table, `but` these tables."""
    before = snapshot()
    yield
    after = snapshot()
    assert {name for name in after if after[name] != before[name]} - set(but) == set()


@contextmanager
def nothing_happens(relay: RelayClient) -> Iterator[None]:
    """What runs inside changes no row of any table, and the relay lives on."""
    with untouched():
        yield
    assert relay.http.get("/livez").status_code == 200


def tables_that_hold(needle: str) -> set[str]:
    """The tables with a row whose text contains `needle`."""
    pattern = f"%{needle}%"
    return {
        name
        for name in tables()
        if query(f'SELECT 1 FROM "{name}" AS t WHERE t::text LIKE %s LIMIT 1', pattern)
    }


# --- Requests that the plain client cannot make -----------------------------------------------


def envelope_for(recipient: Party | UUID, **changes: Any) -> dict[str, Any]:
    """The body of a submit; OMIT leaves a member out."""
    body = {
        "recipient_device_id": str(recipient.id if isinstance(recipient, Party) else recipient),
        "message_id": str(uuid4()),
        "protocol_version": 1,
        "ciphertext": base64_of(b"ciphertext"),
        **changes,
    }
    return {name: value for name, value in body.items() if value is not OMIT}


def json_text(document: Any) -> bytes:
    """A document as JSON, in ASCII."""
    return json.dumps(document).encode()


def post(
    relay: RelayClient,
    caller: Party | None,
    body: Any,
    *,
    path: str = "/v1/envelopes",
    key: str | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """POST of a document, or of bytes as they are."""
    content = body if isinstance(body, bytes) else json_text(body)
    all_headers = {**JSON, "Idempotency-Key": key or new_key(), **(headers or {})}
    return relay.call("POST", path, caller, content=content, headers=all_headers)


def raw_head(
    caller: Party | None,
    *lines: str | bytes,
    method: str = "POST",
    path: str = "/v1/envelopes",
) -> bytes:
    """A request's head, line by line: nothing is added but Host and the caller's token."""
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if caller is not None:
        head.append(f"Authorization: Bearer {caller.token}")
    encoded = [line.encode("latin-1") for line in head]
    encoded += [line if isinstance(line, bytes) else line.encode("latin-1") for line in lines]
    return b"\r\n".join([*encoded, b"", b""])


def exchange(url: str, *parts: bytes, half_close: bool = False) -> httpx.Response | None:
    """Send bytes over a socket of our own; the answer, or None when there is none.

    `half_close` says after the last byte that nothing more will come.
    """
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as line:
        with suppress(OSError):  # answered before it was read to its end: the answer counts
            for part in parts:
                line.sendall(part)
            if half_close:
                line.shutdown(socket.SHUT_WR)
        return read_answer(line)


def answered(answer: httpx.Response | None) -> httpx.Response:
    """The answer, of which there must be one."""
    assert answer is not None, "the connection was closed without an answer"
    return answer


def read_answer(line: socket.socket) -> httpx.Response | None:
    """One response from a socket, or None when it was closed without one."""
    answer = http.client.HTTPResponse(line)
    try:
        answer.begin()
        content = answer.read()
    except (http.client.HTTPException, OSError):
        return None
    return httpx.Response(answer.status, headers=answer.getheaders(), content=content)


def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RelayWithoutDatabase(RelayProcess):
    """A relay that will never be ready: it is started once it is alive."""

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/livez", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False
