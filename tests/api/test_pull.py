"""Pulling one's own queue: pages, order, and what is not there (PROTOCOL section 3)."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from relay.models import Body, Envelope
from tests import factories
from tests.api.helpers import moment, set_limits, set_retention, sweep, text_of, untouched
from tests.client import Party, RelayClient, base64_of, make_device, make_provisioner
from tests.conftest import DatabaseClock

MIB = 2**20
MICROSECOND, SECOND = timedelta(microseconds=1), timedelta(seconds=1)


def _fill(relay: RelayClient, device: Party, count: int, ciphertext: bytes = b"x") -> list[str]:
    """Submit so many envelopes; their message ids in order."""
    answers = [relay.submit(device, device, ciphertext).raise_for_status() for _ in range(count)]
    return [answer.json()["message_id"] for answer in answers]


def _ids(page: dict[str, Any]) -> list[str]:
    return [envelope["message_id"] for envelope in page["envelopes"]]


def _page(relay: RelayClient, device: Party, **query: Any) -> dict[str, Any]:
    page = relay.pull(device, **query).raise_for_status().json()
    assert set(page) == {"envelopes", "next_cursor", "has_more"}
    assert isinstance(page["next_cursor"], str)
    assert page["next_cursor"]
    assert type(page["has_more"]) is bool
    return dict(page)


# --- One page ---------------------------------------------------------------------------------


def test_an_empty_queue_is_an_empty_page_with_a_cursor(relay: RelayClient) -> None:
    page = _page(relay, make_device())
    assert (page["envelopes"], page["has_more"]) == ([], False)


def test_a_page_shows_each_envelope_whole_and_nothing_else(relay: RelayClient) -> None:
    sender, device, message_id = make_device(), make_device(), uuid4()
    accepted = relay.submit(sender, device, b"hello", message_id=message_id, ttl_seconds=60).json()
    assert _page(relay, device)["envelopes"] == [
        {
            "message_id": str(message_id),
            "protocol_version": 1,
            "ciphertext": "aGVsbG8=",
            "size": 5,
            "accepted_at": accepted["accepted_at"],
            "expires_at": accepted["expires_at"],
        }
    ]


def test_envelopes_come_in_the_order_of_their_acceptance(relay: RelayClient) -> None:
    device = make_device()
    ids = _fill(relay, device, 12)
    envelopes = _page(relay, device)["envelopes"]
    assert [envelope["message_id"] for envelope in envelopes] == ids
    times = [envelope["accepted_at"] for envelope in envelopes]
    assert times == sorted(set(times))


def test_the_order_holds_when_the_clock_stands_and_goes_back(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    ids = []
    for now in ("12:00:00", "12:00:00", "11:00:00", "13:00:00", "12:30:00"):
        clock.freeze(f"2031-05-01T{now}Z")
        ids += _fill(relay, device, 2)
    assert _ids(_page(relay, device)) == ids
    assert [each["message_id"] for each in relay.walk(device, limit=1)] == ids


def test_a_page_has_at_most_limit_envelopes_and_50_without_one(relay: RelayClient) -> None:
    device = make_device()
    for _ in range(101):
        factories.store(device.id)
    for query, count in (
        ({}, 50),
        *(({"limit": limit}, limit) for limit in (1, 2, 49, 50, 51, 99, 100)),
    ):
        page = _page(relay, device, **query)
        assert (len(page["envelopes"]), page["has_more"]) == (count, True)


@pytest.mark.parametrize(("held", "limit"), [(1, 1), (2, 2), (3, 5), (100, 100)])
def test_has_more_is_false_when_the_page_is_all_there_is(
    relay: RelayClient, held: int, limit: int
) -> None:
    device = make_device()
    for _ in range(held):
        factories.store(device.id)
    page = _page(relay, device, limit=limit)
    assert (len(page["envelopes"]), page["has_more"]) == (held, False)


def test_pulling_changes_nothing_and_may_be_repeated(relay: RelayClient) -> None:
    device = make_device()
    ids = _fill(relay, device, 3)
    with untouched():
        pages = [_page(relay, device) for _ in range(3)]
        walked = [relay.walk(device, limit=1) for _ in range(2)]
    assert [_ids(page) for page in pages] == [ids] * 3
    assert walked == [pages[0]["envelopes"]] * 2


def test_a_queue_is_its_own_devices_alone(relay: RelayClient) -> None:
    one, two = make_device(), make_device()
    mine = _fill(relay, one, 2)
    assert _ids(_page(relay, one)) == mine
    assert _ids(_page(relay, two)) == []


def test_reads_are_not_to_be_stored(relay: RelayClient) -> None:
    device = make_device()
    for path in ("/v1/envelopes", "/v1/device", "/v1/instance"):
        for answer in (relay.call("GET", path, device), relay.call("GET", path + "?x=1", device)):
            assert answer.headers["cache-control"] == "no-store"
            assert not {"etag", "last-modified", "expires"} & set(answer.headers)


# --- Pages by bytes ---------------------------------------------------------------------------


def _hold(device: Party, *sizes: int) -> list[str]:
    """Envelopes of these sizes in the queue; their message ids in order."""
    ids = []
    for size in sizes:
        envelope = factories.store(device.id, size=size)
        Body.objects.filter(device_id=device.id, seq=envelope.seq).update(ciphertext=b"x" * size)
        ids.append(str(envelope.message_id))
    return ids


@pytest.mark.parametrize(
    ("sizes", "pages"),
    [
        ([MIB] * 4, [4]),
        ([MIB] * 5, [4, 1]),
        ([MIB] * 3 + [MIB - 1, 1], [5]),
        ([MIB] * 3 + [MIB - 1, 2], [4, 1]),
        ([MIB] * 3 + [MIB + 1, 1], [3, 2]),
        ([4 * MIB], [1]),
        ([4 * MIB, 1], [1, 1]),
        ([4 * MIB + 1, 1, 1], [1, 2]),
        ([1, 4 * MIB], [1, 1]),
        ([1, 9 * MIB, 1, 1], [1, 1, 2]),
    ],
)
def test_a_page_ends_at_4_mib_but_never_before_its_first_envelope(
    relay: RelayClient, sizes: list[int], pages: list[int]
) -> None:
    device = make_device()
    ids = _hold(device, *sizes)
    found, cursor, counts = [], {}, []
    while True:
        page = _page(relay, device, **cursor)
        found += _ids(page)
        counts.append(len(page["envelopes"]))
        if not page["has_more"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert (counts, found) == (pages, ids)


def test_envelopes_of_the_largest_kind_come_four_to_a_page(relay: RelayClient) -> None:
    device = make_device()
    set_limits(envelope_bytes=MIB)
    ids = _fill(relay, device, 5, b"x" * MIB)
    page = _page(relay, device, limit=100)
    assert (_ids(page), page["has_more"]) == (ids[:4], True)
    assert page["envelopes"][0]["ciphertext"] == base64_of(b"x" * MIB)


# --- What is not there any more ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("away", "seen"),
    [(-SECOND, 1), (-MICROSECOND, 1), (0 * SECOND, 0), (MICROSECOND, 0), (SECOND, 0)],
)
def test_an_envelope_is_gone_at_its_expiry_to_the_microsecond(
    relay: RelayClient, clock: DatabaseClock, away: timedelta, seen: int
) -> None:
    device = make_device()
    clock.freeze("2031-05-01T12:00:00.000007Z")
    accepted = relay.submit(device, device, ttl_seconds=60).json()
    assert accepted["expires_at"] == "2031-05-01T12:01:00.000007Z"
    clock.freeze(text_of(moment(accepted["expires_at"]) + away))
    page = _page(relay, device)
    assert (len(page["envelopes"]), page["has_more"]) == (seen, False)


def test_neither_acknowledged_nor_expired_nor_purged_envelopes_are_shown(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    acked, purged, kept = _fill(relay, device, 3)
    relay.submit(device, device, ttl_seconds=60).raise_for_status()
    relay.acknowledge(device, [acked]).raise_for_status()
    Envelope.objects.filter(message_id=purged).update(
        outcome="purged", cleanup_after=factories.now()
    )
    clock.shift(61 * SECOND)
    assert _ids(_page(relay, device)) == [kept]
    sweep()
    assert _ids(_page(relay, device)) == [kept]


def test_has_more_does_not_count_what_is_not_there_any_more(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    device = make_device()
    ids = _fill(relay, device, 3)
    relay.submit(device, device, ttl_seconds=60).raise_for_status()
    relay.acknowledge(device, [ids[2]]).raise_for_status()
    clock.shift(61 * SECOND)
    page = _page(relay, device, limit=2)
    assert (_ids(page), page["has_more"]) == (ids[:2], False)


def test_extending_the_ttl_revives_nothing(relay: RelayClient, clock: DatabaseClock) -> None:
    device = make_device()
    set_retention(ttl_days=1)
    _fill(relay, device, 1)
    clock.shift(timedelta(days=1, seconds=1))
    assert _ids(_page(relay, device)) == []
    set_retention(ttl_days=30)
    assert _ids(_page(relay, device)) == []


def test_no_provisioner_has_a_queue(relay: RelayClient) -> None:
    assert relay.pull(make_provisioner()).status_code == 403
