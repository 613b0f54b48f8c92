"""What one request may cost: a body is no way to hold the relay up."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.helpers import assert_problem, envelope_for, post, raw_head
from tests.client import RelayClient, make_device
from tests.concurrency.loads import submit_surely
from tests.conftest import WEB_THREADS, RelayProcess
from tests.properties.profiles import fuse

LISTS = {"/v1/acks": "message_ids", "/v1/envelopes/batch": "envelopes"}


@pytest.fixture
def own_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay of this test alone: nobody else waits while its threads are held."""
    process = RelayProcess(tmp_path_factory.mktemp("bounded") / "web.log")
    process.start()
    yield process
    process.stop()


@pytest.mark.parametrize("item", [0, {}, {"a": 0}], ids=["numbers", "objects", "members"])
@pytest.mark.parametrize("path", LISTS)
def test_a_list_that_is_too_long_is_refused_before_its_entries_are_looked_at(
    relay: RelayClient, path: str, item: Any
) -> None:
    """Or 8 MiB of zeros would be four million errors, and minutes of work."""
    answer = post(relay, make_device(), {LISTS[path]: [item] * 101}, path=path)
    assert_problem(answer, "VALIDATION_FAILED", pointers={f"/{LISTS[path]}"})


#: Begins of requests that are never finished: two kinds of callers of the REST face, and the
#: console, where Django itself reads the body for its form.
UNFINISHED = [
    lambda: raw_head(
        make_device(),
        "Content-Type: application/json",
        "Idempotency-Key: k",
        "Content-Length: 1000",
    ),
    lambda: raw_head(
        None, "Content-Type: application/json", "Content-Length: 1000", path="/v1/acks"
    ),
    lambda: (
        raw_head(
            None,
            "Content-Type: application/x-www-form-urlencoded",
            "Cookie: csrftoken=" + "a" * 32,
            "Content-Length: 1000",
            path="/admin/login/",
        )
        + b"username="
    ),
]


@fuse
def test_bodies_that_never_come_hold_up_nobody_at_another_address(
    own_relay: RelayProcess,
) -> None:
    sender, recipient = make_device(), make_device()
    address = urlsplit(own_relay.url)
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
    with ExitStack() as lines:
        for number in range(3 * WEB_THREADS):
            line = socket.create_connection((address.hostname, address.port), timeout=10)
            begin = UNFINISHED[number % len(UNFINISHED)]()
            lines.enter_context(line).sendall(begin)
        assert httpx.get(f"{own_relay.url}/livez", timeout=5).status_code == 200
        with RelayClient(own_relay.url) as here:
            assert here.device(sender).status_code == 200  # it has no body
            assert_problem(here.submit(sender, recipient), "RATE_LIMITED")
        with RelayClient(own_relay.url) as there:
            there.http = httpx.Client(base_url=own_relay.url, transport=elsewhere, timeout=5)
            assert there.submit(sender, recipient).status_code == 201
    with RelayClient(own_relay.url) as here:
        assert submit_surely(here, sender, recipient).status_code == 201  # it passes


@pytest.mark.parametrize("mark", [b"[],", b"{},", b"0,", b"[", b'{"a":'])
def test_more_than_any_call_has_is_refused_unparsed(relay: RelayClient, mark: bytes) -> None:
    body = b'{"envelopes":[' + mark * (8 * 2**20 // len(mark) - 20)
    answer = post(relay, make_device(), body, path="/v1/envelopes/batch")
    assert_problem(answer, "MALFORMED_REQUEST")
    assert "more in it" in answer.json()["detail"]


def test_an_entry_that_is_no_object_is_named(relay: RelayClient) -> None:
    entries = {"envelopes": [envelope_for(make_device()), 0]}
    answer = post(relay, make_device(), entries, path="/v1/envelopes/batch")
    assert_problem(answer, "VALIDATION_FAILED", pointers={"/envelopes/1"})
