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


@fuse
def test_bodies_of_many_callers_that_never_come_hold_up_nobody_else(
    own_relay: RelayProcess,
) -> None:
    head = ("Content-Type: application/json", "Idempotency-Key: k", "Content-Length: 1000")
    address = urlsplit(own_relay.url)
    with ExitStack() as lines:
        for _ in range(2 * WEB_THREADS):
            line = socket.create_connection((address.hostname, address.port), timeout=10)
            lines.enter_context(line).sendall(raw_head(make_device(), *head))
        assert httpx.get(f"{own_relay.url}/livez", timeout=5).status_code == 200


def test_an_entry_that_is_no_object_is_named(relay: RelayClient) -> None:
    entries = {"envelopes": [envelope_for(make_device()), 0]}
    answer = post(relay, make_device(), entries, path="/v1/envelopes/batch")
    assert_problem(answer, "VALIDATION_FAILED", pointers={"/envelopes/1"})
