"""A full-looking queue first expires its own due envelopes (DESIGN rule 4.7)."""

from datetime import timedelta

import pytest

from relay.models import Envelope
from tests import factories
from tests.client import Party, make_device
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import code_of, set_limits, submit_surely
from tests.concurrency.oracle import assert_sound
from tests.conftest import DatabaseClock
from tests.rules.planting import run, totals

LATER = timedelta(seconds=61)


def _outcomes(device: Party) -> dict[str, int]:
    rows = run(
        "SELECT outcome, count(*) FROM relay_envelope WHERE device_id = %s GROUP BY outcome",
        [device.id],
    )
    return dict(rows)


@pytest.mark.parametrize(
    ("limits", "size"),
    [({"pending_count": 10}, 10), ({"pending_bytes": 2**20, "envelope_bytes": 2**20}, 104_857)],
    ids=["by count", "by bytes"],
)
def test_a_full_queue_whose_mail_is_due_takes_new_mail_without_any_sweep(
    inside: InsideClient, clock: DatabaseClock, limits: dict[str, int], size: int
) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(**limits)
    for _ in range(10):
        submit_surely(inside, sender, recipient, b"x" * size, ttl_seconds=60)
    assert code_of(inside.submit(sender, recipient, b"y" * size)) == "RECIPIENT_QUOTA_EXCEEDED"
    clock.shift(LATER)
    assert inside.submit(sender, recipient, b"y" * size).status_code == 201
    assert _outcomes(recipient) == {"expired": 10, "pending": 1}
    assert totals(recipient.id) == (1, size)
    assert_sound()


def test_a_queue_with_room_is_left_to_the_sweep(inside: InsideClient, clock: DatabaseClock) -> None:
    sender, recipient = make_device(), make_device()
    submit_surely(inside, sender, recipient, ttl_seconds=60)
    clock.shift(LATER)
    assert inside.submit(sender, recipient).status_code == 201
    assert _outcomes(recipient) == {"pending": 2}


def test_what_is_not_due_stays_and_the_queue_stays_full(
    inside: InsideClient, clock: DatabaseClock
) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(pending_count=10)
    for _ in range(10):
        submit_surely(inside, sender, recipient, ttl_seconds=120)
    clock.shift(LATER)
    assert code_of(inside.submit(sender, recipient)) == "RECIPIENT_QUOTA_EXCEEDED"
    assert _outcomes(recipient) == {"pending": 10}


def _store_due(device: Party, count: int) -> None:
    for _ in range(count):
        factories.store_due(device.id)


def test_at_most_two_hundred_are_expired_inline(inside: InsideClient) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(pending_count=230)
    _store_due(recipient, 230)
    assert inside.submit(sender, recipient).status_code == 201
    assert _outcomes(recipient) == {"expired": 200, "pending": 31}
    # The oldest went.
    oldest = Envelope.objects.filter(outcome="pending").order_by("seq").first()
    assert oldest is not None
    assert oldest.seq == 201
    assert_sound()


def test_it_is_tried_once_and_what_it_did_stays_although_the_submit_is_refused(
    inside: InsideClient,
) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(pending_count=10)
    _store_due(recipient, 215)
    assert code_of(inside.submit(sender, recipient, key="once")) == "RECIPIENT_QUOTA_EXCEEDED"
    assert _outcomes(recipient) == {"expired": 200, "pending": 15}
    assert inside.submit(sender, recipient, key="once").status_code == 201
    assert _outcomes(recipient) == {"expired": 215, "pending": 1}
    assert_sound()


def test_a_duplicate_is_told_so_by_a_full_queue_and_ends_nothing(
    inside: InsideClient, clock: DatabaseClock
) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(pending_count=10)
    first = submit_surely(inside, sender, recipient, ttl_seconds=60)
    message_id = first.json()["message_id"]
    for _ in range(9):
        submit_surely(inside, sender, recipient, ttl_seconds=60)
    again = inside.submit(sender, recipient, message_id=message_id, ttl_seconds=60)
    assert (again.status_code, again.json()) == (200, first.json())
    assert _outcomes(recipient) == {"pending": 10}
