"""Batches that meet: the one lock order, the exact edge, one effect for one key."""

from collections import Counter
from functools import partial
from typing import Any

import httpx
import pytest

from config.kernel.shards import shard_of_device
from idempotency.models import Record
from relay.models import Envelope
from tests.api.helpers import envelope_for
from tests.client import RelayClient, make_device
from tests.concurrency.crowd import together
from tests.concurrency.deadlocks import Watched, watched, watched_relay
from tests.concurrency.loads import code_of, set_limits
from tests.concurrency.oracle import assert_sound
from tests.properties.batches import results, send, send_surely, usage_of, verdicts

__all__ = ["watched", "watched_relay"]

ROUNDS = 50


def _all_at_once(relay: RelayClient, batches: list[list[Any]]) -> list[httpx.Response]:
    """Each batch from a sender of its own, until each has its final answer."""
    senders = [make_device() for _ in batches]
    return together(
        [partial(send_surely, relay, *pair) for pair in zip(senders, batches, strict=True)]
    )


@pytest.mark.slow
def test_batches_over_the_same_hundred_devices_in_opposite_order_never_deadlock(
    watched: Watched, watched_relay: RelayClient
) -> None:
    devices, (one, other) = [make_device() for _ in range(100)], (make_device(), make_device())
    up = sorted(devices, key=lambda each: (shard_of_device(each.id), each.id))
    for _ in range(ROUNDS):
        first, second = ([envelope_for(each) for each in order] for order in (up, up[::-1]))
        answers = together(
            [
                partial(send_surely, watched_relay, one, first),
                partial(send_surely, watched_relay, other, second),
            ]
        )
        assert [verdicts(answer) for answer in answers] == [["accepted"] * 100] * 2
    assert watched.stop_and_count() == 0
    assert {usage_of(device) for device in devices} == {(2 * ROUNDS, 2 * ROUNDS * 10)}
    assert_sound()


def test_batches_that_meet_at_the_edge_get_exactly_the_room_there_is(relay: RelayClient) -> None:
    device, beside = make_device(), make_device()
    set_limits(pending_count=50)
    batches = [[envelope_for(device) for _ in range(20)] + [envelope_for(beside)] for _ in range(8)]
    answers = _all_at_once(relay, batches)
    taken = []
    for answer in answers:
        *here, there = verdicts(answer)
        accepted = here.count("accepted")
        # The queue is one batch's while it is judged: its first entries fit, the rest do not.
        assert here == ["accepted"] * accepted + ["RECIPIENT_QUOTA_EXCEEDED"] * (20 - accepted)
        assert there == "accepted"
        taken.append(accepted)
    assert sorted(taken) == [0, 0, 0, 0, 0, 10, 20, 20]
    assert (usage_of(device), usage_of(beside)) == ((50, 500), (8, 80))
    assert_sound()


def test_one_batch_sent_many_times_at_once_under_one_key_takes_effect_once(
    relay: RelayClient,
) -> None:
    sender, devices = make_device(), [make_device() for _ in range(20)]
    batch = [envelope_for(device) for device in devices]
    answers = together([partial(send, relay, sender, batch, key="the one key")] * 12)
    running = [answer for answer in answers if answer.status_code == 409]
    assert {code_of(answer) for answer in running} <= {"IDEMPOTENCY_IN_PROGRESS"}
    done = [answer for answer in answers if answer.status_code == 200]
    assert len(done) + len(running) == 12
    [content] = {answer.content for answer in done}
    first = [answer for answer in done if "idempotency-replayed" not in answer.headers]
    assert [answer.content for answer in first] == [content]
    assert verdicts(first[0]) == ["accepted"] * 20
    assert {usage_of(device) for device in devices} == {(1, 10)}
    assert (Envelope.objects.count(), Record.objects.count()) == (20, 1)


def test_the_same_entries_in_crossing_batches_are_accepted_once_each(relay: RelayClient) -> None:
    devices = [make_device() for _ in range(10)]
    entries = [envelope_for(device) for device in devices for _ in range(3)]
    orders = [entries, entries[::-1], entries[15:] + entries[:15], entries[::2] + entries[1::2]]
    answers = _all_at_once(relay, orders * 2)
    found = [each for answer in answers for each in results(answer)]
    statuses: dict[str, Counter[str]] = {}
    times: dict[str, set[str]] = {}
    for each in found:
        statuses.setdefault(each["message_id"], Counter())[each["status"]] += 1
        times.setdefault(each["message_id"], set()).add(each["accepted_at"])
    assert set(statuses) == {entry["message_id"] for entry in entries}
    assert all(counts == {"accepted": 1, "duplicate": 7} for counts in statuses.values())
    assert all(len(each) == 1 for each in times.values())
    assert {usage_of(device) for device in devices} == {(3, 30)}
    assert_sound()
