"""The usage row is the clock and the line (DESIGN rule 4.4)."""

import re
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.client import RelayClient, make_device, new_key
from tests.concurrency.crowd import Background
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import submit_surely
from tests.concurrency.oracle import assert_sound
from tests.concurrency.outside import usage_row_locked, waiting_for_a_lock
from tests.conftest import DatabaseClock
from tests.rules.planting import run


def test_accepted_at_rises_while_the_clock_stands_still(
    inside: InsideClient, clock: DatabaseClock
) -> None:
    sender, recipient = make_device(), make_device()
    clock.freeze("2026-06-01T12:00:00.999999Z")
    times = [submit_surely(inside, sender, recipient).json()["accepted_at"] for _ in range(3)]
    assert times == [
        "2026-06-01T12:00:00.999999Z",
        "2026-06-01T12:00:01.000000Z",
        "2026-06-01T12:00:01.000001Z",
    ]


def test_accepted_at_rises_inside_a_batch(inside: InsideClient, clock: DatabaseClock) -> None:
    recipient = make_device()
    clock.freeze("2026-06-01T12:00:00.000000Z")
    envelopes = [
        {
            "recipient_device_id": str(recipient.id),
            "message_id": str(uuid4()),
            "protocol_version": 1,
            "ciphertext": "eHh4",
        }
        for _ in range(3)
    ]
    options = {"json": {"envelopes": envelopes}, "headers": {"Idempotency-Key": new_key()}}
    answer = inside.call("POST", "/v1/envelopes/batch", make_device(), **options)
    assert [result["accepted_at"] for result in answer.json()["results"]] == [
        "2026-06-01T12:00:00.000000Z",
        "2026-06-01T12:00:00.000001Z",
        "2026-06-01T12:00:00.000002Z",
    ]


def test_accepted_at_rises_when_the_clock_goes_back(
    inside: InsideClient, clock: DatabaseClock
) -> None:
    sender, recipient = make_device(), make_device()
    clock.freeze("2026-06-01T12:00:00.000000Z")
    submit_surely(inside, sender, recipient)
    clock.freeze("2026-06-01T11:00:00.000000Z")
    accepted = submit_surely(inside, sender, recipient, ttl_seconds=60).json()
    assert accepted["accepted_at"] == "2026-06-01T12:00:00.000001Z"
    assert accepted["expires_at"] == "2026-06-01T12:01:00.000001Z"
    clock.freeze("2026-06-01T12:00:00.500000Z")
    accepted = submit_surely(inside, sender, recipient).json()
    assert accepted["accepted_at"] == "2026-06-01T12:00:00.500000Z"
    assert_sound()


def test_another_queue_has_a_clock_of_its_own(inside: InsideClient, clock: DatabaseClock) -> None:
    clock.freeze("2026-06-01T12:00:00.000000Z")
    sender = make_device()
    times = [submit_surely(inside, sender, make_device()).json()["accepted_at"] for _ in range(3)]
    assert times == ["2026-06-01T12:00:00.000000Z"] * 3


@pytest.mark.parametrize("write", ["submit", "acknowledge"])
def test_the_clock_is_read_in_a_statement_of_its_own_after_the_lock(
    inside: InsideClient, write: str
) -> None:
    sender, recipient = make_device(), make_device()
    message_id = submit_surely(inside, sender, recipient).json()["message_id"]
    with CaptureQueriesContext(connection) as captured:
        if write == "submit":
            inside.submit(sender, recipient)
        else:
            inside.acknowledge(recipient, [message_id], key=new_key())
    statements = [query["sql"] for query in captured.captured_queries]
    [locked] = [at for at, each in enumerate(statements) if "FOR NO KEY UPDATE" in each]
    [read] = [at for at, each in enumerate(statements) if "relay_now()" in each]
    written = [
        at
        for at, each in enumerate(statements)
        if re.match(r"\s*(--.*\n\s*)*(UPDATE|WITH)", each) and "idempotency" not in each
    ]
    assert locked < read < min(written)
    assert statements[read] == "SELECT relay_now()"
    clocks = re.compile(r"\b(now|clock_timestamp|statement_timestamp)\(\)|CURRENT_", re.I)
    assert not [each for each in statements if clocks.search(each)]


@pytest.mark.parametrize("write", ["submit", "acknowledge", "batch"])
def test_the_time_is_that_after_the_wait(relay: RelayClient, write: str) -> None:
    """Read before the lock, an envelope that waited would be older than those before it."""
    sender, recipient = make_device(), make_device()
    message_id = submit_surely(relay, sender, recipient).json()["message_id"]
    entry = {
        "recipient_device_id": str(recipient.id),
        "message_id": str(uuid4()),
        "protocol_version": 1,
        "ciphertext": "eHh4",
    }
    batch = {"json": {"envelopes": [entry]}, "headers": {"Idempotency-Key": new_key()}}
    calls = {
        "submit": lambda: relay.submit(sender, recipient),
        "acknowledge": lambda: relay.acknowledge(recipient, [message_id]),
        "batch": lambda: relay.call("POST", "/v1/envelopes/batch", sender, **batch),
    }
    with usage_row_locked(recipient.id) as let_go:
        waiting = Background(calls[write])
        waiting_for_a_lock(1)
        [(before,)] = run("SELECT relay_now()")
        let_go()
        assert waiting.result().status_code in (200, 201)
    if write == "acknowledge":
        [(at,)] = run("SELECT acked_at FROM relay_envelope")
    else:
        [(at,)] = run("SELECT accepted_at FROM relay_envelope WHERE seq = 2")
    assert at > before


def test_places_are_kept_as_whole_microseconds(inside: InsideClient, clock: DatabaseClock) -> None:
    recipient = make_device()
    clock.freeze("2026-06-01T12:00:00.123456Z")
    submit_surely(inside, make_device(), recipient)
    [(last, next_seq)] = run(
        "SELECT last_accepted_us, next_seq FROM quotas_queueusage WHERE device_id = %s",
        [recipient.id],
    )
    assert (last, next_seq) == (1_780_315_200_123_456, 2)
