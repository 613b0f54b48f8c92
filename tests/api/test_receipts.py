"""What stays when ciphertext goes, and for how long (PROTOCOL section 5)."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from relay.models import Body, Envelope
from tests.api.helpers import moment, query, set_retention, sweep, tables_that_hold, text_of
from tests.client import Party, RelayClient, make_device
from tests.conftest import DatabaseClock

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
START = "2031-05-01T12:00:00.000000Z"


def _status(relay: RelayClient, device: Party, message_id: Any) -> str:
    [result] = relay.acknowledge(device, [message_id]).json()["results"]
    return str(result["status"])


def test_a_receipt_holds_no_ciphertext_no_size_no_sender_and_no_time_of_acknowledgement(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    canary = b"canary of a ciphertext that goes"
    accepted = relay.submit(sender, recipient, canary, message_id=message_id).json()
    clock.shift(timedelta(minutes=7))
    _status(relay, recipient, message_id)
    acked_at = Envelope.objects.get().acked_at
    assert acked_at is not None
    sweep()
    assert Body.objects.count() == 0
    assert tables_that_hold(canary.hex()) == set()
    receipt = Envelope.objects.get()
    assert (receipt.size, receipt.protocol_version, receipt.acked_at) == (None, None, None)
    assert (receipt.message_id, receipt.device_id) == (message_id, recipient.id)
    assert text_of(receipt.accepted_at) == accepted["accepted_at"]
    assert text_of(receipt.expires_at) == accepted["expires_at"]
    assert receipt.outcome == "acknowledged"
    assert tables_that_hold(str(sender.id)) == {"relay_device", "quotas_queueusage"}


def test_a_receipt_does_not_tell_the_time_of_the_acknowledgement(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device, message_id = make_device(), uuid4()
    clock.freeze(START)
    relay.submit(device, device, message_id=message_id).raise_for_status()
    clock.freeze("2031-05-01T12:34:56.789012Z")
    _status(relay, device, message_id)
    clock.freeze("2031-05-01T13:00:00Z")
    sweep()
    [(receipt,)] = query("SELECT e::text FROM relay_envelope AS e")
    assert "12:34:56" not in receipt


def test_ciphertext_goes_by_the_next_sweep_after_acknowledgement_and_expiry(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    acked, expired, kept = uuid4(), uuid4(), uuid4()
    relay.submit(device, device, message_id=acked).raise_for_status()
    relay.submit(device, device, message_id=expired, ttl_seconds=60).raise_for_status()
    relay.submit(device, device, b"kept", message_id=kept).raise_for_status()
    sweep()
    assert Body.objects.count() == 3
    _status(relay, device, acked)
    clock.shift(61 * SECOND)
    sweep()
    assert [bytes(body.ciphertext) for body in Body.objects.all()] == [b"kept"]
    assert [each["message_id"] for each in relay.walk(device)] == [str(kept)]


#: (the retention, the TTL asked for, when the receipt lapses after acceptance)
LAPSES: dict[str, tuple[dict[str, int], int, timedelta]] = {
    "a short TTL": ({}, 60, 8 * DAY),
    "the longest TTL": ({}, 604_800, 8 * DAY),
    "2 receipt days": ({"receipt_days": 2}, 60, 2 * DAY),
    "2 receipt days, a TTL of one": ({"receipt_days": 2}, 86_400, 2 * DAY),
    "90 receipt days": ({"receipt_days": 90}, 604_800, 90 * DAY),
    "a day after the expiry": ({"receipt_days": 2}, 86_401, 2 * DAY + SECOND),
    "a day after a late expiry": ({"receipt_days": 2}, 604_800, 8 * DAY),
    "a day after 30": ({"ttl_days": 30}, 30 * 86_400, 31 * DAY),
    "both at once": ({"ttl_days": 30, "receipt_days": 31}, 30 * 86_400, 31 * DAY),
}


@pytest.mark.parametrize("case", LAPSES)
@pytest.mark.parametrize("outcome", ["acknowledged", "expired"])
def test_a_receipt_lapses_receipt_days_after_acceptance_and_not_within_a_day_of_its_expiry(
    relay: RelayClient, clock: DatabaseClock, case: str, outcome: str
) -> None:
    retention, ttl, lapses_after = LAPSES[case]
    device, message_id = make_device(), uuid4()
    if retention:
        set_retention(**retention)
    clock.freeze(START)
    first = relay.submit(device, device, message_id=message_id, ttl_seconds=ttl)
    if outcome == "acknowledged":
        _status(relay, device, message_id)
    clock.freeze(text_of(moment(START) + lapses_after - SECOND))
    sweep()
    assert Body.objects.count() == 0
    assert _status(relay, device, message_id) == outcome
    again = relay.submit(device, device, message_id=message_id, ttl_seconds=ttl)
    assert (again.status_code, again.content) == (200, first.content)
    conflict = relay.submit(device, device, b"other", message_id=message_id)
    assert conflict.json()["code"] == "MESSAGE_ID_CONFLICT"

    clock.freeze(text_of(moment(START) + lapses_after + SECOND))
    sweep()
    assert _status(relay, device, message_id) == "unknown"
    fresh = relay.submit(device, device, b"other", message_id=message_id)
    assert fresh.status_code == 201
    assert fresh.json()["accepted_at"] == text_of(moment(START) + lapses_after + SECOND)


def test_a_lapsed_receipt_leaves_no_row_of_its_message(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    relay.submit(sender, recipient, message_id=message_id, key="k").raise_for_status()
    _status(relay, recipient, message_id)
    clock.shift(8 * DAY + SECOND)
    sweep()
    held = tables_that_hold(str(message_id)) | tables_that_hold(message_id.hex)
    assert held == set()


def test_receipts_count_against_no_quota_and_are_not_pulled(relay: RelayClient) -> None:
    device = make_device()
    query("UPDATE quotas_limitpolicy SET pending_count = 10")
    for _ in range(3):
        for _ in range(10):
            relay.submit(device, device).raise_for_status()
        relay.acknowledge(device, [each["message_id"] for each in relay.walk(device)])
        sweep()
    assert Envelope.objects.count() == 30
    assert relay.device(device).json()["pending"] == {"count": 0, "bytes": 0}
    assert relay.walk(device) == []
