"""Acknowledging: one answer an id, the same for ever (PROTOCOL section 4)."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.models import Envelope, Outcome
from tests import factories
from tests.api.helpers import moment, post, query, sweep, text_of, untouched
from tests.client import Party, RelayClient, make_device
from tests.conftest import DatabaseClock

MICROSECOND, SECOND = timedelta(microseconds=1), timedelta(seconds=1)


def _submit(relay: RelayClient, device: Party, size: int = 10, **members: Any) -> str:
    answer = relay.submit(device, device, b"x" * size, **members).raise_for_status()
    return str(answer.json()["message_id"])


def _statuses(relay: RelayClient, device: Party, ids: Sequence[Any]) -> list[str]:
    """The status of each id, in the order of the list."""
    answer = relay.acknowledge(device, list(ids))
    assert (answer.status_code, set(answer.json())) == (200, {"results"})
    results = answer.json()["results"]
    assert [result["message_id"] for result in results] == [str(each) for each in ids]
    assert all(set(result) == {"message_id", "status"} for result in results)
    return [result["status"] for result in results]


def _pending(relay: RelayClient, device: Party) -> tuple[int, int]:
    pending = relay.device(device).json()["pending"]
    return pending["count"], pending["bytes"]


def _drift() -> list[tuple[Any, ...]]:
    """Usage rows that are not the sums over what is pending: there must be none."""
    return query(
        "SELECT u.pending_count, u.pending_bytes, count(e.seq), coalesce(sum(e.size), 0) "
        "FROM quotas_queueusage u LEFT JOIN relay_envelope e "
        "ON e.shard = u.shard AND e.device_id = u.device_id AND e.outcome = 'pending' "
        "GROUP BY u.shard, u.device_id, u.pending_count, u.pending_bytes "
        "HAVING u.pending_count <> count(e.seq) OR u.pending_bytes <> coalesce(sum(e.size), 0)"
    )


# --- One answer an id -------------------------------------------------------------------------


def test_an_acknowledged_envelope_is_gone_for_good_and_stays_acknowledged(
    relay: RelayClient,
) -> None:
    device = make_device()
    kept, acked = _submit(relay, device), _submit(relay, device)
    assert _statuses(relay, device, [acked]) == ["acknowledged"]
    assert [each["message_id"] for each in relay.walk(device)] == [kept]
    for _ in range(3):
        assert _statuses(relay, device, [acked]) == ["acknowledged"]


def test_what_is_not_in_this_queue_is_unknown_another_devices_included(
    relay: RelayClient,
) -> None:
    one, two = make_device(), make_device()
    foreign = _submit(relay, two)
    with untouched():
        assert _statuses(relay, one, [foreign, uuid4(), foreign]) == ["unknown"] * 3
    assert [each["message_id"] for each in relay.walk(two)] == [foreign]


def test_the_sender_cannot_acknowledge_what_it_sent(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    message_id = relay.submit(sender, recipient).json()["message_id"]
    assert _statuses(relay, sender, [message_id]) == ["unknown"]
    assert len(relay.walk(recipient)) == 1


@pytest.mark.parametrize(
    ("away", "status"),
    [
        (-SECOND, "acknowledged"),
        (-MICROSECOND, "acknowledged"),
        (0 * SECOND, "expired"),
        (MICROSECOND, "expired"),
        (SECOND, "expired"),
    ],
)
def test_at_its_expiry_to_the_microsecond_an_envelope_is_expired_and_stays_so(
    relay: RelayClient, clock: DatabaseClock, away: timedelta, status: str
) -> None:
    device = make_device()
    clock.freeze("2031-05-01T12:00:00.000007Z")
    accepted = relay.submit(device, device, ttl_seconds=60).json()
    clock.freeze(text_of(moment(accepted["expires_at"]) + away))
    ids = [accepted["message_id"]]
    assert _statuses(relay, device, ids) == [status]
    clock.freeze(text_of(moment(accepted["expires_at"]) + 10 * SECOND))
    assert _statuses(relay, device, ids) == [status]
    sweep()
    assert query("SELECT count(*) FROM relay_body") == [(0,)]
    assert _statuses(relay, device, ids) == [status]
    assert (_pending(relay, device), _drift()) == ((0, 0), [])


def test_an_acknowledgement_before_the_expiry_holds_after_it(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    message_id = _submit(relay, device, ttl_seconds=60)
    assert _statuses(relay, device, [message_id]) == ["acknowledged"]
    clock.shift(timedelta(hours=1))
    assert _statuses(relay, device, [message_id]) == ["acknowledged"]
    sweep()
    assert _statuses(relay, device, [message_id]) == ["acknowledged"]


def test_what_was_purged_early_is_expired(relay: RelayClient) -> None:
    device = make_device()
    message_id = _submit(relay, device)
    _purge(message_id)
    for _ in range(2):
        assert _statuses(relay, device, [message_id]) == ["expired"]
        sweep()


def _purge(message_id: str) -> None:
    """What a purge does to an envelope (DESIGN section 3)."""
    envelope = Envelope.objects.get(message_id=message_id)
    changed = {"outcome": Outcome.PURGED, "cleanup_after": factories.now()}
    Envelope.objects.filter(pk=envelope.pk).update(**changed)
    query(
        "UPDATE quotas_queueusage SET pending_count = pending_count - 1, "
        "pending_bytes = pending_bytes - %s WHERE device_id = %s",
        *(envelope.size, envelope.device_id),
    )


# --- A hundred at once ------------------------------------------------------------------------


def test_a_hundred_mixed_ids_get_the_same_answers_before_and_after_removal(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device, other = make_device(), make_device()
    expired = [_submit(relay, device, ttl_seconds=60) for _ in range(10)]
    clock.shift(61 * SECOND)
    valid = [_submit(relay, device) for _ in range(20)]
    before = [_submit(relay, device) for _ in range(5)]
    purged = [_submit(relay, device) for _ in range(5)]
    kept = [_submit(relay, device) for _ in range(3)]
    foreign = [_submit(relay, other) for _ in range(10)]
    unknown = [str(uuid4()) for _ in range(30)]
    for message_id in purged:
        _purge(message_id)
    _statuses(relay, device, before)
    groups = [
        (valid, "acknowledged"),
        (unknown, "unknown"),
        (expired, "expired"),
        (valid[:10], "acknowledged"),  # again, in the same list
        (before, "acknowledged"),
        (foreign, "unknown"),
        (purged, "expired"),
        (expired[:5], "expired"),
        (unknown[:5], "unknown"),
    ]
    mixed = [(each, status) for ids, status in groups for each in ids]
    mixed = [mixed[place * 37 % 100] for place in range(100)]  # neighbours of all kinds
    ids, expected = [each for each, _ in mixed], [status for _, status in mixed]
    assert len(set(range(100)) - {place * 37 % 100 for place in range(100)}) == 0
    for _ in range(3):
        assert _statuses(relay, device, ids) == expected
    sweep()
    remaining = query("SELECT count(*) FROM relay_body WHERE device_id = %s", device.id)
    assert remaining == [(3,)]
    for _ in range(2):
        assert _statuses(relay, device, ids) == expected
    assert [each["message_id"] for each in relay.walk(device)] == kept
    assert len(relay.walk(other)) == 10
    assert (_pending(relay, device), _drift()) == ((3, 30), [])


@pytest.mark.parametrize("count", [1, 2, 99, 100])
def test_1_to_100_ids_are_taken(relay: RelayClient, count: int) -> None:
    device = make_device()
    message_id = _submit(relay, device)
    ids = [message_id, *(str(uuid4()) for _ in range(count - 1))]
    assert _statuses(relay, device, ids) == ["acknowledged"] + ["unknown"] * (count - 1)


@pytest.mark.parametrize("count", [0, 101, 1_000])
def test_no_other_number_of_ids_is_taken_and_nothing_is_acknowledged(
    relay: RelayClient, count: int
) -> None:
    device = make_device()
    message_id = _submit(relay, device)
    with untouched():
        assert relay.acknowledge(device, [message_id] * count).status_code == 400
    assert len(relay.walk(device)) == 1


def test_an_id_repeated_in_the_list_is_answered_each_time_and_counted_once(
    relay: RelayClient,
) -> None:
    device = make_device()
    message_id, _ = _submit(relay, device, 100), _submit(relay, device, 7)
    forms = [message_id, message_id.upper(), UUID(message_id).urn] * 33
    answer = post(relay, device, {"message_ids": forms}, path="/v1/acks")
    assert answer.json()["results"] == [{"message_id": message_id, "status": "acknowledged"}] * 99
    assert (_pending(relay, device), _drift()) == ((1, 7), [])


# --- What commits together --------------------------------------------------------------------


def test_the_quota_comes_back_with_the_acknowledgement_and_only_once(relay: RelayClient) -> None:
    device = make_device()
    ids = [_submit(relay, device, size) for size in (100, 20, 3)]
    assert _pending(relay, device) == (3, 123)
    for _ in range(2):
        _statuses(relay, device, [ids[1], uuid4()])
        assert (_pending(relay, device), _drift()) == ((2, 103), [])
    sweep()
    assert _pending(relay, device) == (2, 103)
    _statuses(relay, device, ids)
    assert (_pending(relay, device), _drift()) == ((0, 0), [])


def test_cleanup_is_due_from_the_moment_of_the_acknowledgement(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    message_id = _submit(relay, device)
    clock.freeze("2031-05-01T12:00:00.000007Z")
    Envelope.objects.update(expires_at="2031-06-01T00:00Z", receipt_until="2031-07-01T00:00Z")
    _statuses(relay, device, [message_id])
    envelope = Envelope.objects.get(message_id=message_id)
    assert envelope.acked_at == envelope.cleanup_after == moment("2031-05-01T12:00:00.000007Z")
    clock.freeze("2031-05-01T12:30:00Z")
    with untouched():  # a repeat moves no time
        _statuses(relay, device, [message_id])
    sweep()
    assert query("SELECT count(*) FROM relay_body") == [(0,)]


def test_an_acknowledgement_finds_room_for_the_next_envelope(relay: RelayClient) -> None:
    device = make_device()
    first = _submit(relay, device)
    query("UPDATE quotas_limitpolicy SET pending_count = 10")
    for _ in range(9):
        _submit(relay, device)
    assert relay.submit(device, device).status_code == 429
    _statuses(relay, device, [first])
    assert relay.submit(device, device).status_code == 201
    assert relay.submit(device, device).status_code == 429


def test_acknowledging_out_of_order_keeps_the_rest(relay: RelayClient) -> None:
    device = make_device()
    ids = [_submit(relay, device) for _ in range(6)]
    for place in (5, 0, 3):
        assert _statuses(relay, device, [ids[place]]) == ["acknowledged"]
    assert [each["message_id"] for each in relay.walk(device, limit=1)] == [ids[1], ids[2], ids[4]]


def test_an_acknowledgement_tells_no_one_but_the_server(relay: RelayClient) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    first = relay.submit(sender, recipient, message_id=message_id)
    own = relay.device(sender).json()
    _statuses(relay, recipient, [message_id])
    assert relay.device(sender).json() == own
    assert relay.pull(sender).json()["envelopes"] == []
    again = relay.submit(sender, recipient, message_id=message_id)
    assert again.content == first.content
