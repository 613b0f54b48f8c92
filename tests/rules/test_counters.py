"""Counters move by what changed, and drift does no lasting harm (DESIGN rule 4.6)."""

import logging
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from config.kernel import pseudonyms
from config.kernel.shards import shard_of_device
from relay.services.quota_audit import quota_audit
from tests.client import Party, make_device, make_provisioner
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import set_limits, submit_surely, sweep
from tests.concurrency.oracle import assert_sound, faults_found
from tests.conftest import DatabaseClock
from tests.rules.planting import run, set_usage, totals


class _Alarms(logging.Handler):
    """What was logged under one event's name: its fields."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self._event = event
        self.raised: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == self._event:
            assert record.levelno == logging.ERROR
            self.raised.append(record.relay_fields)  # type: ignore[attr-defined]


@pytest.fixture
def alarms() -> Iterator[_Alarms]:
    """Every `quota.drifted` of this process."""
    handler = _Alarms("quota.drifted")
    logging.getLogger("relay").addHandler(handler)
    yield handler
    logging.getLogger("relay").removeHandler(handler)


@pytest.fixture
def queue(inside: InsideClient) -> tuple[Party, list[str]]:
    """A device with five envelopes of 10 bytes that expire in a minute, and their ids."""
    sender, recipient = make_device(), make_device()
    ids = [
        submit_surely(inside, sender, recipient, b"x" * 10, ttl_seconds=60).json()["message_id"]
        for _ in range(5)
    ]
    return recipient, ids


def test_what_leaves_a_queue_is_counted_out_once(
    inside: InsideClient, queue: tuple[Party, list[str]], alarms: _Alarms
) -> None:
    recipient, ids = queue
    assert totals(recipient.id) == (5, 50)
    inside.acknowledge(recipient, [ids[0], ids[1], ids[0]])  # one of them twice in the list
    assert totals(recipient.id) == (3, 30)
    inside.acknowledge(recipient, [ids[0], ids[1]])  # again: nothing changed
    assert totals(recipient.id) == (3, 30)
    inside.acknowledge(recipient, ids)
    assert totals(recipient.id) == (0, 0)
    assert alarms.raised == []


LOW = [(0, 0), (1, 50), (5, 9), (2, 20)]


@pytest.mark.parametrize(("count", "size"), LOW)
def test_an_acknowledgement_mends_totals_that_are_too_low_and_raises_the_alarm(
    inside: InsideClient,
    queue: tuple[Party, list[str]],
    alarms: _Alarms,
    count: int,
    size: int,
) -> None:
    recipient, ids = queue
    set_usage(recipient.id, pending_count=count, pending_bytes=size)
    answer = inside.acknowledge(recipient, ids[:3])
    assert answer.status_code == 200
    assert [result["status"] for result in answer.json()["results"]] == ["acknowledged"] * 3
    assert totals(recipient.id) == (2, 20)
    assert alarms.raised == [
        {"device": pseudonyms.of_device(recipient.id), "shard": shard_of_device(recipient.id)}
    ]
    inside.acknowledge(recipient, ids)
    assert totals(recipient.id) == (0, 0)
    assert len(alarms.raised) == 1  # mended for good
    assert_sound()


def _expire(inside: InsideClient, clock: DatabaseClock, recipient: Party) -> None:
    clock.shift(timedelta(seconds=61))
    sweep()


def _expire_inline(inside: InsideClient, clock: DatabaseClock, recipient: Party) -> None:
    """A queue that looks full for one envelope of another limit."""
    set_limits(pending_bytes=2**20, envelope_bytes=2**20)
    clock.shift(timedelta(seconds=61))
    assert inside.submit(make_device(), recipient, b"y" * 2**20).status_code == 201


def _disable(inside: InsideClient, clock: DatabaseClock, recipient: Party) -> None:
    inside.call("DELETE", f"/v1/devices/{recipient.id}", make_provisioner())
    sweep()


WAYS = [(_expire, (0, 0)), (_expire_inline, (1, 2**20)), (_disable, (0, 0))]


@pytest.mark.parametrize(("way", "left"), WAYS)
def test_every_other_way_out_of_a_queue_mends_them_too(  # noqa: PLR0917 - fixtures
    inside: InsideClient,
    clock: DatabaseClock,
    queue: tuple[Party, list[str]],
    alarms: _Alarms,
    way: Callable[[InsideClient, DatabaseClock, Party], None],
    left: tuple[int, int],
) -> None:
    recipient, _ = queue
    set_usage(recipient.id, pending_count=1, pending_bytes=10)
    way(inside, clock, recipient)
    assert totals(recipient.id) == left
    assert len(alarms.raised) == 1
    assert_sound()


def test_one_drifted_queue_does_not_keep_a_sweep_from_the_others(
    inside: InsideClient, clock: DatabaseClock, alarms: _Alarms
) -> None:
    sender, devices = make_device(), [make_device() for _ in range(6)]
    for device in devices:
        submit_surely(inside, sender, device, ttl_seconds=60)
    set_usage(devices[0].id, pending_count=0, pending_bytes=0)
    clock.shift(timedelta(seconds=61))
    sweep()
    assert [totals(device.id) for device in devices] == [(0, 0)] * 6
    assert run("SELECT DISTINCT outcome FROM relay_envelope") == [("expired",)]
    assert len(alarms.raised) == 1


def test_totals_that_are_too_high_are_found_and_mended_by_the_audit(
    inside: InsideClient, queue: tuple[Party, list[str]]
) -> None:
    recipient, _ = queue
    set_usage(recipient.id, pending_count=7, pending_bytes=70)
    [drift] = list(quota_audit(repair=False))
    assert (drift.counted.count, drift.counted.bytes) == (7, 70)
    assert (drift.true.count, drift.true.bytes) == (5, 50)
    assert drift.device == pseudonyms.of_device(recipient.id)
    assert totals(recipient.id) == (7, 70)  # only looked
    assert len(list(quota_audit(repair=True))) == 1
    assert totals(recipient.id) == (5, 50)
    assert list(quota_audit(repair=False)) == []
    assert faults_found() == []


def test_a_clock_from_the_future_is_found_and_goes_no_further_back_than_what_is_stored(
    inside: InsideClient, clock: DatabaseClock
) -> None:
    sender, ahead, empty = make_device(), make_device(), make_device()
    clock.freeze("2026-06-01T13:00:00.000000Z")
    for device in (ahead, empty):
        submit_surely(inside, sender, device)
    run("DELETE FROM relay_envelope WHERE device_id = %s", [empty.id])
    run("DELETE FROM relay_body WHERE device_id = %s", [empty.id])
    set_usage(empty.id, pending_count=0, pending_bytes=0)
    clock.freeze("2026-06-01T12:00:00.000000Z")
    found = {drift.device: drift.seconds_ahead for drift in quota_audit(repair=True)}
    assert found == {
        pseudonyms.of_device(ahead.id): 3600.0,
        pseudonyms.of_device(empty.id): 3600.0,
    }
    accepted = [submit_surely(inside, sender, device).json() for device in (ahead, empty)]
    assert [each["accepted_at"] for each in accepted] == [
        "2026-06-01T13:00:00.000001Z",
        "2026-06-01T12:00:00.000001Z",
    ]


@pytest.mark.parametrize(
    ("column", "constraint"),
    [
        ("pending_count", "usage_pending_count_not_negative"),
        ("pending_bytes", "usage_pending_bytes_not_negative"),
    ],
)
def test_the_database_knows_no_negative_totals(column: str, constraint: str) -> None:
    device = make_device()
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        run(
            f"UPDATE quotas_queueusage SET {column} = {column} - 1 WHERE device_id = %s",
            [device.id],
        )
    assert totals(device.id) == (0, 0)
    constraints = connection.introspection.get_constraints(connection.cursor(), "quotas_queueusage")
    assert constraints[constraint]["check"] is True
