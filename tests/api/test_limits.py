"""Defaults and bounds, and the storage quotas (PROTOCOL sections 2 and 8)."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.utils import timezone

from quotas.models import LimitPolicy
from relay.models import RetentionPolicy
from tests import factories
from tests.api.helpers import assert_problem, set_limits, set_retention
from tests.client import RelayClient, make_device
from tests.conftest import DatabaseClock

KIB, MIB, GIB = 2**10, 2**20, 2**30

#: setting: (default, lowest, highest), of PROTOCOL section 8.
LIMITS = {
    "envelope_bytes": (64 * KIB, 1 * KIB, 1 * MIB),
    "pending_count": (1_000, 10, 100_000),
    "pending_bytes": (64 * MIB, 1 * MIB, 4 * GIB),
    "actor_rate": (200, 1, 1_000_000),
    "address_rate": (2_000, 1, 1_000_000),
    "window_seconds": (10, 1, 3_600),
}
RETENTION = {
    "ttl_days": (7, 1, 30),
    "min_ttl_seconds": (60, 1, 86_400),
    "receipt_days": (8, 2, 90),
}


def _limit_row(**columns: Any) -> LimitPolicy:
    return LimitPolicy(version=99, created_at=timezone.now(), protocol_versions=[1], **columns)


def _retention_row(**columns: Any) -> RetentionPolicy:
    return RetentionPolicy(version=99, created_at=timezone.now(), **columns)


# --- Defaults and bounds ----------------------------------------------------------------------


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_has_its_default_and_its_bounds(name: str) -> None:
    default, lowest, highest = LIMITS[name]
    assert getattr(_limit_row(), name) == default
    for value in (lowest, highest):
        set_limits(**{name: value})
    for value in (lowest - 1, highest + 1, 0, -1):
        with pytest.raises(ValidationError):
            set_limits(**{name: value})
        with pytest.raises(IntegrityError):
            _limit_row(**{name: value}).save(force_insert=True)


@pytest.mark.parametrize("name", RETENTION)
def test_a_retention_setting_has_its_default_and_its_bounds(name: str) -> None:
    default, lowest, highest = RETENTION[name]
    assert getattr(_retention_row(), name) == default
    for value in (lowest, highest):
        set_retention(**{name: value})
    for value in (lowest - 1, highest + 1, 0, -1):
        with pytest.raises(ValidationError):
            set_retention(**{name: value})
        with pytest.raises(IntegrityError):
            _retention_row(**{name: value}).save(force_insert=True)


def test_the_address_rate_can_be_off_and_no_other_limit() -> None:
    set_limits(address_rate=None)
    for name in set(LIMITS) - {"address_rate"}:
        with pytest.raises((ValidationError, IntegrityError)):
            set_limits(**{name: None})


@pytest.mark.parametrize("versions", [[1], [255], [1, 2, 255]])
def test_protocol_versions_are_each_1_to_255(versions: list[int]) -> None:
    set_limits(protocol_versions=versions)


@pytest.mark.parametrize("versions", [[], [0], [256], [-1], [1, 256], [1, 1]])
def test_other_protocol_versions_are_refused(versions: list[int]) -> None:
    with pytest.raises(ValidationError):
        set_limits(protocol_versions=versions)


# --- Quotas -----------------------------------------------------------------------------------


def test_a_queue_takes_exactly_its_count(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(pending_count=10)
    answers = [relay.submit(sender, recipient).status_code for _ in range(12)]
    assert answers == [201] * 10 + [429] * 2
    assert len(relay.walk(recipient)) == 10


def test_a_queue_takes_exactly_its_bytes(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(envelope_bytes=MIB, pending_bytes=MIB)
    relay.submit(sender, recipient, b"x" * (MIB - 10)).raise_for_status()
    assert_problem(relay.submit(sender, recipient, b"x" * 11), "RECIPIENT_QUOTA_EXCEEDED")
    assert relay.submit(sender, recipient, b"x" * 10).status_code == 201
    assert_problem(relay.submit(sender, recipient, b"x"), "RECIPIENT_QUOTA_EXCEEDED")
    assert relay.device(recipient).json()["pending"] == {"count": 2, "bytes": MIB}


def test_a_full_device_does_not_refuse_its_neighbour(relay: RelayClient) -> None:
    sender, full, neighbour = make_device(), make_device(), make_device()
    set_limits(pending_count=10)
    for _ in range(10):
        relay.submit(sender, full).raise_for_status()
    assert_problem(relay.submit(sender, full), "RECIPIENT_QUOTA_EXCEEDED")
    assert relay.submit(sender, neighbour).status_code == 201
    assert relay.submit(full, sender).status_code == 201


def test_a_lower_quota_refuses_what_comes_and_keeps_what_is_there(relay: RelayClient) -> None:
    device = make_device()
    for _ in range(12):
        relay.submit(device, device).raise_for_status()
    set_limits(pending_count=10)
    assert_problem(relay.submit(device, device), "RECIPIENT_QUOTA_EXCEEDED")
    envelopes = relay.walk(device)
    assert len(envelopes) == 12
    relay.acknowledge(device, [each["message_id"] for each in envelopes[:3]]).raise_for_status()
    assert relay.submit(device, device).status_code == 201
    assert_problem(relay.submit(device, device), "RECIPIENT_QUOTA_EXCEEDED")


def test_expired_mail_that_no_sweep_has_ended_takes_no_room(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    sender, by_count, by_bytes = make_device(), make_device(), make_device()
    set_limits(pending_count=10, envelope_bytes=MIB, pending_bytes=MIB)
    for _ in range(10):
        relay.submit(sender, by_count, ttl_seconds=60).raise_for_status()
    relay.submit(sender, by_bytes, b"x" * MIB, ttl_seconds=60).raise_for_status()
    clock.shift(timedelta(seconds=59))
    for recipient in (by_count, by_bytes):
        assert_problem(relay.submit(sender, recipient), "RECIPIENT_QUOTA_EXCEEDED")
    clock.shift(timedelta(seconds=61))
    for recipient in (by_count, by_bytes):
        assert relay.submit(sender, recipient).status_code == 201
        assert relay.device(recipient).json()["pending"] == {"count": 1, "bytes": 10}


def test_a_queue_full_of_expired_mail_takes_new_mail_at_its_first_try(
    relay: RelayClient,
) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(pending_count=210)
    for _ in range(210):  # more than one submit expires
        factories.store_due(recipient.id)
    assert relay.submit(sender, recipient, b"new").status_code == 201
    assert relay.device(recipient).json()["pending"] == {"count": 1, "bytes": 3}


def test_the_answer_to_a_full_queue_depends_on_nothing_of_the_recipient(
    relay: RelayClient,
) -> None:
    sender = make_device()
    set_limits(pending_count=10)
    seen = []
    for _ in range(2):
        recipient = make_device()
        for _ in range(10):
            relay.submit(sender, recipient).raise_for_status()
        refusals = [relay.submit(sender, recipient).json()["retry_after"] for _ in range(15)]
        seen.append(refusals)
    assert all(1 <= each <= 120 for refusals in seen for each in refusals)
    assert all(len(set(refusals)) > 1 for refusals in seen)
