"""The same message_id again: a duplicate, or a conflict (PROTOCOL sections 2 and 5)."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.api.helpers import (
    assert_problem,
    query,
    set_limits,
    set_retention,
    sweep,
    tables_that_hold,
    untouched,
    without_request_id,
)
from tests.client import Party, RelayClient, base64_of, make_device, make_provisioner
from tests.conftest import DatabaseClock

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


def _security_events(device: Party) -> int:
    statement = "SELECT count(*) FROM outbox_event WHERE topic = 'security' AND device_id = %s"
    return int(query(statement, device.id)[0][0])


# --- Duplicates -------------------------------------------------------------------------------


def test_the_same_envelope_under_another_key_is_a_duplicate_with_the_first_times(
    relay: RelayClient,
) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    first = relay.submit(sender, recipient, b"one", message_id=message_id, ttl_seconds=600)
    assert first.status_code == 201
    with untouched("idempotency_record"):
        again = relay.submit(sender, recipient, b"one", message_id=message_id, ttl_seconds=600)
    assert (again.status_code, again.json()) == (200, first.json())
    assert "idempotency-replayed" not in again.headers
    assert len(relay.walk(recipient)) == 1


def test_neither_sender_nor_ttl_nor_version_makes_it_another_envelope(relay: RelayClient) -> None:
    recipient, message_id = make_device(), uuid4()
    set_limits(protocol_versions=[1, 2])
    first = relay.submit(make_device(), recipient, message_id=message_id, ttl_seconds=600)
    for sender, members in (
        (make_device(), {}),
        (make_provisioner(), {"ttl_seconds": 60}),
        (recipient, {"protocol_version": 2, "ttl_seconds": 10**9}),
    ):
        again = relay.submit(sender, recipient, message_id=message_id, **members)
        assert (again.status_code, again.json()) == (200, first.json())
    [envelope] = relay.walk(recipient)
    assert envelope["protocol_version"] == 1


def _acknowledge(relay: RelayClient, device: Party, clock: DatabaseClock) -> None:
    ids = [each["message_id"] for each in relay.walk(device)]
    relay.acknowledge(device, ids).raise_for_status()


def _acknowledge_and_remove(relay: RelayClient, device: Party, clock: DatabaseClock) -> None:
    _acknowledge(relay, device, clock)
    sweep()
    assert query("SELECT count(*) FROM relay_body") == [(0,)]


def _expire(relay: RelayClient, device: Party, clock: DatabaseClock) -> None:
    clock.shift(601 * SECOND)


def _expire_and_remove(relay: RelayClient, device: Party, clock: DatabaseClock) -> None:
    _expire(relay, device, clock)
    sweep()
    assert query("SELECT count(*) FROM relay_body") == [(0,)]


def _almost_lapse(relay: RelayClient, device: Party, clock: DatabaseClock) -> None:
    _acknowledge(relay, device, clock)
    clock.shift(8 * DAY - 60 * SECOND)
    sweep()
    assert query("SELECT count(*) FROM relay_body") == [(0,)]


def _change_policy(relay: RelayClient, device: Party, clock: DatabaseClock) -> None:
    set_retention(ttl_days=1, receipt_days=2)


LATER: dict[str, Callable[[RelayClient, Party, DatabaseClock], None]] = {
    "acknowledged": _acknowledge,
    "acknowledged and removed": _acknowledge_and_remove,
    "expired": _expire,
    "expired and removed": _expire_and_remove,
    "almost lapsed": _almost_lapse,
    "kept under another policy": _change_policy,
}


@pytest.mark.parametrize("later", LATER)
def test_a_duplicate_answers_the_same_whatever_became_of_the_envelope(
    relay: RelayClient, clock: DatabaseClock, later: str
) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    first = relay.submit(sender, recipient, b"one", message_id=message_id, ttl_seconds=600)
    LATER[later](relay, recipient, clock)
    with untouched("idempotency_record"):
        again = relay.submit(sender, recipient, b"one", message_id=message_id, ttl_seconds=600)
    assert (again.status_code, again.content) == (200, first.content)


@pytest.mark.parametrize("later", LATER)
def test_a_conflict_answers_the_same_whatever_became_of_the_envelope(
    relay: RelayClient, clock: DatabaseClock, later: str
) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    relay.submit(sender, recipient, b"one", message_id=message_id, ttl_seconds=600)
    LATER[later](relay, recipient, clock)
    with untouched("outbox_event"):
        answer = relay.submit(sender, recipient, b"two", message_id=message_id)
        assert_problem(answer, "MESSAGE_ID_CONFLICT")


def test_an_expired_envelope_does_not_come_back_by_a_duplicate(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device, message_id = make_device(), uuid4()
    relay.submit(device, device, message_id=message_id, ttl_seconds=60)
    clock.shift(61 * SECOND)
    assert relay.submit(device, device, message_id=message_id).status_code == 200
    assert relay.walk(device) == []


# --- Conflicts --------------------------------------------------------------------------------


def test_other_ciphertext_under_a_taken_message_id_is_a_conflict_that_changes_nothing(
    relay: RelayClient,
) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    relay.submit(sender, recipient, b"one", message_id=message_id).raise_for_status()
    before = relay.walk(recipient)
    with untouched("outbox_event"):
        for other in (b"two", b"one ", b"onE", b"one\0"):
            answer = relay.submit(sender, recipient, other, message_id=message_id)
            assert_problem(answer, "MESSAGE_ID_CONFLICT")
    assert relay.walk(recipient) == before
    assert before[0]["ciphertext"] == base64_of(b"one")


def test_conflicts_are_one_security_event_a_queue_and_hour(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    sender, one, two = make_device(), make_device(), make_device()
    ids = [uuid4(), uuid4()]

    def conflict(device: Party, message_id: UUID) -> None:
        answer = relay.submit(sender, device, b"other", message_id=message_id)
        assert_problem(answer, "MESSAGE_ID_CONFLICT")

    clock.freeze("2031-05-01T12:00:00Z")
    for device in (one, two):
        for message_id in ids:
            relay.submit(sender, device, b"first", message_id=message_id).raise_for_status()
    assert (_security_events(one), _security_events(two)) == (0, 0)
    for now in ("12:00:00", "12:30:00", "12:59:59.999999"):
        clock.freeze(f"2031-05-01T{now}Z")
        for message_id in ids:
            conflict(one, message_id)
    assert (_security_events(one), _security_events(two)) == (1, 0)
    clock.freeze("2031-05-01T13:00:00Z")
    conflict(one, ids[0])
    assert (_security_events(one), _security_events(two)) == (2, 0)
    conflict(two, ids[0])
    assert (_security_events(one), _security_events(two)) == (2, 1)


def test_a_conflict_leaves_no_trace_of_its_ciphertext_nor_of_its_sender(
    relay: RelayClient,
) -> None:
    sender, recipient, message_id = make_provisioner(), make_device(), uuid4()
    relay.submit(make_device(), recipient, b"one", message_id=message_id).raise_for_status()
    canary = b"canary of a conflicting ciphertext"
    answer = relay.submit(sender, recipient, canary, message_id=message_id, key="canary-key")
    assert_problem(answer, "MESSAGE_ID_CONFLICT")
    assert _security_events(recipient) == 1
    for needle in (canary.hex(), base64_of(canary)[:-4], canary.decode(), "canary-key"):
        assert tables_that_hold(needle) == set()
    assert tables_that_hold(str(sender.id)) == {"relay_provisioner"}
    assert str(message_id) not in str(query("SELECT to_jsonb(e)::text FROM outbox_event AS e"))


def test_a_conflict_answer_does_not_depend_on_what_was_there(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    answers = []
    for first in (b"a", b"b" * 60_000):
        message_id = uuid4()
        relay.submit(sender, recipient, first, message_id=message_id).raise_for_status()
        answers.append(relay.submit(sender, recipient, b"c", message_id=message_id))
    assert without_request_id(answers[0]) == without_request_id(answers[1])
