"""What a submit stores and answers (PROTOCOL section 2)."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.api.helpers import (
    RFC3339,
    assert_problem,
    moment,
    query,
    set_limits,
    set_retention,
    tables_that_hold,
    untouched,
    without_request_id,
)
from tests.client import RelayClient, base64_of, make_device, make_provisioner
from tests.conftest import DatabaseClock

DAY = 86_400

# --- Times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "ttl", "expires_at"),
    [
        ("2031-05-01T12:00:00.000001Z", 60, "2031-05-01T12:01:00.000001Z"),
        ("2031-05-01T12:00:00.000000Z", 86_400, "2031-05-02T12:00:00.000000Z"),
        ("2031-12-31T23:59:59.999999Z", 61, "2032-01-01T00:01:00.999999Z"),
        ("2032-02-28T00:00:00.500000Z", 172_800, "2032-03-01T00:00:00.500000Z"),
        ("2031-03-30T00:59:59.000000Z", 604_800, "2031-04-06T00:59:59.000000Z"),
    ],
)
def test_expiry_is_acceptance_and_the_ttl_to_the_microsecond(
    relay: RelayClient, clock: DatabaseClock, now: str, ttl: int, expires_at: str
) -> None:
    device, message_id = make_device(), uuid4()
    clock.freeze(now)
    answer = relay.submit(device, device, message_id=message_id, ttl_seconds=ttl)
    assert answer.status_code == 201
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "message_id": str(message_id),
        "accepted_at": now,
        "expires_at": expires_at,
        "ttl_seconds": ttl,
    }
    [envelope] = relay.pull(device).json()["envelopes"]
    assert (envelope["accepted_at"], envelope["expires_at"]) == (now, expires_at)


@pytest.mark.parametrize(
    ("retention", "asked", "given"),
    [
        ({}, None, 604_800),
        ({}, 604_799, 604_799),
        ({}, 604_800, 604_800),
        ({}, 604_801, 604_800),
        ({}, 60, 60),
        ({"ttl_days": 1}, None, DAY),
        ({"ttl_days": 1}, DAY + 1, DAY),
        ({"ttl_days": 1}, DAY - 1, DAY - 1),
        ({"ttl_days": 30}, None, 30 * DAY),
        ({"ttl_days": 30}, 8 * DAY, 8 * DAY),
        ({"ttl_days": 30}, 31 * DAY, 30 * DAY),
        ({"min_ttl_seconds": 1}, 1, 1),
        ({"min_ttl_seconds": DAY}, DAY, DAY),
        ({"ttl_days": 1, "min_ttl_seconds": DAY}, 2 * DAY, DAY),
    ],
)
def test_the_ttl_is_what_was_asked_for_cut_to_the_instance_ttl(
    relay: RelayClient, retention: dict[str, int], asked: int | None, given: int
) -> None:
    device = make_device()
    if retention:
        set_retention(**retention)
    accepted = relay.submit(device, device, **({"ttl_seconds": asked} if asked else {})).json()
    assert accepted["ttl_seconds"] == given
    kept = moment(accepted["expires_at"]) - moment(accepted["accepted_at"])
    assert kept == timedelta(seconds=given)


@pytest.mark.parametrize(
    ("minimum", "asked"), [(60, 59), (60, 0), (60, -1), (1, 0), (1, -1), (DAY, DAY - 1)]
)
def test_a_ttl_below_the_minimum_is_refused(relay: RelayClient, minimum: int, asked: int) -> None:
    device = make_device()
    set_retention(min_ttl_seconds=minimum)
    with untouched():
        assert_problem(relay.submit(device, device, ttl_seconds=asked), "TTL_OUT_OF_RANGE")
    assert relay.submit(device, device, ttl_seconds=minimum).status_code == 201


def test_a_change_of_the_ttl_is_for_what_comes(relay: RelayClient) -> None:
    device = make_device()
    before = relay.submit(device, device).json()
    set_retention(ttl_days=1)
    after = relay.submit(device, device).json()
    assert [each["ttl_seconds"] for each in (before, after)] == [7 * DAY, DAY]
    pulled = {each["message_id"]: each["expires_at"] for each in relay.walk(device)}
    assert pulled[before["message_id"]] == before["expires_at"]


def test_acceptance_moves_on_although_the_clock_stands_or_goes_back(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    times = []
    for now in (
        *("2031-05-01T12:00:00.000000Z", "2031-05-01T12:00:00.000000Z"),
        *("2031-05-01T11:00:00.000000Z", "2031-05-01T12:00:00.000002Z"),
    ):
        clock.freeze(now)
        times.append(relay.submit(device, device).json()["accepted_at"])
    assert times == [f"2031-05-01T12:00:00.00000{number}Z" for number in range(4)]


def test_devices_do_not_share_a_line(relay: RelayClient, clock: DatabaseClock) -> None:
    one, two = make_device(), make_device()
    clock.freeze("2031-05-01T12:00:00.000000Z")
    times = [relay.submit(one, each).json()["accepted_at"] for each in (one, two, one)]
    assert times[0] == times[1] == "2031-05-01T12:00:00.000000Z"
    assert times[2] == "2031-05-01T12:00:00.000001Z"


def test_times_are_those_of_the_form_without_a_moved_clock(relay: RelayClient) -> None:
    device = make_device()
    accepted = relay.submit(device, device).json()
    assert RFC3339.fullmatch(accepted["accepted_at"])
    assert RFC3339.fullmatch(accepted["expires_at"])


# --- Content ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ciphertext", [b"\x00", b"\xff\xfe", bytes(range(256)), b"\x00" * 65_536, b"'\"\\%s;--"]
)
def test_ciphertext_comes_out_as_it_went_in(relay: RelayClient, ciphertext: bytes) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    accepted = relay.submit(sender, recipient, ciphertext, message_id=message_id).json()
    assert relay.walk(recipient) == [
        {
            "message_id": str(message_id),
            "protocol_version": 1,
            "ciphertext": base64_of(ciphertext),
            "size": len(ciphertext),
            "accepted_at": accepted["accepted_at"],
            "expires_at": accepted["expires_at"],
        }
    ]


@pytest.mark.parametrize("limit", [1024, 65_536, 100_000, 2**20])
def test_the_size_that_counts_is_that_of_the_decoded_bytes(relay: RelayClient, limit: int) -> None:
    device = make_device()
    set_limits(envelope_bytes=limit)
    assert relay.submit(device, device, b"x" * limit).status_code == 201
    with untouched():
        answer = relay.submit(device, device, b"x" * (limit + 1))
        assert_problem(answer, "ENVELOPE_TOO_LARGE")


def test_only_protocol_versions_of_the_instance_are_accepted(relay: RelayClient) -> None:
    device = make_device()
    versions = {
        version: relay.submit(device, device, protocol_version=version) for version in (1, 2)
    }
    assert versions[1].status_code == 201
    assert_problem(versions[2], "PROTOCOL_VERSION_UNSUPPORTED")
    set_limits(protocol_versions=[2, 255])
    for version in (1, 3, 254):
        answer = relay.submit(device, device, protocol_version=version)
        assert_problem(answer, "PROTOCOL_VERSION_UNSUPPORTED")
    for version in (2, 255):
        assert relay.submit(device, device, protocol_version=version).status_code == 201
    assert [each["protocol_version"] for each in relay.walk(device)] == [1, 2, 255]


def test_one_message_id_may_go_to_two_devices(relay: RelayClient) -> None:
    sender, one, two, message_id = make_device(), make_device(), make_device(), uuid4()
    answers = [relay.submit(sender, each, message_id=message_id) for each in (one, two)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert [len(relay.walk(each)) for each in (one, two, sender)] == [1, 1, 0]


# --- The recipient and the sender -------------------------------------------------------------


def test_an_unknown_and_a_disabled_recipient_get_the_same_answer(relay: RelayClient) -> None:
    sender, disabled, provisioner = make_device(), make_device(), make_provisioner()
    relay.submit(sender, disabled).raise_for_status()
    relay.call("DELETE", f"/v1/devices/{disabled.id}", provisioner).raise_for_status()
    with untouched():
        answers = [relay.submit(sender, each) for each in (uuid4(), disabled, provisioner)]
    for answer in answers:
        assert_problem(answer, "RECIPIENT_UNKNOWN")
        assert without_request_id(answer) == without_request_id(answers[0])
        assert set(answer.headers) == set(answers[0].headers)


def test_a_duplicate_for_a_disabled_recipient_says_no_more_than_unknown(
    relay: RelayClient,
) -> None:
    sender, recipient, provisioner = make_device(), make_device(), make_provisioner()
    message_id = uuid4()
    relay.submit(sender, recipient, b"one", message_id=message_id).raise_for_status()
    relay.call("DELETE", f"/v1/devices/{recipient.id}", provisioner).raise_for_status()
    with untouched():
        for ciphertext in (b"one", b"two"):
            answer = relay.submit(sender, recipient, ciphertext, message_id=message_id)
            assert_problem(answer, "RECIPIENT_UNKNOWN")


def test_the_sender_is_stored_nowhere(relay: RelayClient) -> None:
    device, provisioner, recipient = make_device(), make_provisioner(), make_device()
    own: dict[Any, set[str]] = {
        party: {name for form in (str(party.id), party.id.hex) for name in tables_that_hold(form)}
        for party in (device, provisioner)
    }
    for sender in (device, provisioner):
        relay.submit(sender, recipient).raise_for_status()
    for party, tables in own.items():
        for form in (str(party.id), party.id.hex, party.token.split(".")[2]):
            assert tables_that_hold(form) <= tables
    [(envelopes,)] = query("SELECT count(*) FROM relay_envelope")
    assert envelopes == 2


def test_what_two_senders_leave_behind_does_not_tell_them_apart(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    recipient = make_device()
    clock.freeze("2031-05-01T12:00:00.000000Z")
    for sender in (make_device(), make_provisioner(), recipient):
        relay.submit(sender, recipient).raise_for_status()
    rows = query(
        "SELECT to_jsonb(e) - '{seq,message_id,fingerprint,accepted_at,expires_at,"
        "receipt_until}'::text[] FROM relay_envelope AS e"
    )
    assert len(rows) == 3
    assert rows[0] == rows[1] == rows[2]
