"""One device's row is locked from outside; the others do not notice (FAULTS 20)."""

import statistics
import threading
import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import uuid4

import httpx

from config.kernel.shards import shard_of_device
from tests.client import Party, RelayClient, make_device, new_key
from tests.concurrency.crowd import Background, Crew, together
from tests.concurrency.loads import code_of, submit_surely
from tests.concurrency.oracle import assert_sound
from tests.concurrency.outside import usage_row_locked, waiting_for_a_lock
from tests.conftest import WEB_THREADS

#: How long the row is held. Longer shows nothing more: every wait in it is 2 s at most.
HELD = 4.0
HAMMERS = 20


class _Timed(NamedTuple):
    seconds: float
    answer: httpx.Response


def _timed(call: Callable[[], httpx.Response]) -> _Timed:
    began = time.monotonic()
    answer = call()
    return _Timed(time.monotonic() - began, answer)


def _p95(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


def _submits_for(relay: RelayClient, recipient: Party, *, most: int, until: float) -> list[float]:
    """Latencies of submits to a healthy device, one after another."""
    sender, found = make_device(), []
    while len(found) < most and time.monotonic() < until:
        timed = _timed(lambda: relay.submit(sender, recipient))
        assert timed.answer.status_code == 201, timed.answer.text
        found.append(timed.seconds)
        time.sleep(0.01)
    return found


def _is_unavailable(answer: httpx.Response) -> bool:
    problem = answer.json()
    return (
        answer.status_code == 503
        and problem["code"] == "STORAGE_UNAVAILABLE"
        and problem["retryable"] is True
        and answer.headers["Retry-After"] == str(problem["retry_after"])
    )


def test_a_stuck_device_gets_503_and_its_neighbour_keeps_its_latency(relay: RelayClient) -> None:
    sender, stuck, neighbour = make_device(), make_device(), make_device()
    far = time.monotonic() + 60
    together([lambda: relay.submit(make_device(), make_device())] * WEB_THREADS)  # all connect
    before = _submits_for(relay, neighbour, most=100, until=far)

    hammered: list[_Timed] = []
    added = threading.Lock()

    def hammer() -> None:
        timed = _timed(lambda: relay.submit(sender, stuck))
        with added:
            hammered.append(timed)
        time.sleep(0.1)  # a client in a hurry; one without a pause would only load the machine

    with Crew() as crew, usage_row_locked(stuck.id):
        crew.add(hammer, HAMMERS)
        waiting_for_a_lock(1)
        during = _submits_for(relay, neighbour, most=10_000, until=time.monotonic() + HELD)

    assert len(during) > 20
    # Held up by the stuck one it would be two seconds.
    assert _p95(during) < max(4 * _p95(before), 0.5)
    # Whoever began while the row was held was refused, in time.
    refused = [timed for timed in hammered if timed.answer.status_code != 201]
    assert all(_is_unavailable(timed.answer) for timed in refused)
    # (Who stands behind another one in PostgreSQL waits twice: for the turn, and for the row.)
    assert max(timed.seconds for timed in refused) < 6
    # A quarter of the threads may wait; everyone else was told at once.
    assert statistics.median(timed.seconds for timed in refused) < 0.5
    assert submit_surely(relay, sender, stuck).status_code == 201
    assert_sound()


def test_beyond_a_quarter_of_the_threads_the_answer_is_immediate(relay: RelayClient) -> None:
    sender, stuck = make_device(), make_device()

    def one() -> _Timed:
        return _timed(lambda: relay.submit(sender, stuck))

    with Crew() as crew, usage_row_locked(stuck.id):
        crew.add(one, WEB_THREADS // 4)
        for _ in range(3):  # it may be the moment in which those who wait give up
            waiting_for_a_lock(WEB_THREADS // 4)
            time.sleep(0.3)  # the line has to stand before it counts as stuck
            later = together([one] * 8)
            assert all(_is_unavailable(timed.answer) for timed in later)
            slowest = max(timed.seconds for timed in later)
            if slowest < 0.5:
                break
        assert slowest < 0.5
    assert_sound()


def test_a_lone_submit_to_a_stuck_device_is_refused_within_the_lock_timeout(
    relay: RelayClient,
) -> None:
    sender, stuck = make_device(), make_device()
    with usage_row_locked(stuck.id):
        timed = _timed(lambda: relay.submit(sender, stuck))
    assert _is_unavailable(timed.answer)
    assert 1.9 <= timed.seconds < 4
    assert_sound()


def test_a_stuck_device_may_still_pull_and_its_acknowledgement_is_503(relay: RelayClient) -> None:
    """Reading takes no lock."""
    sender, stuck = make_device(), make_device()
    message_id = submit_surely(relay, sender, stuck).json()["message_id"]
    with usage_row_locked(stuck.id) as let_go:
        timed = _timed(lambda: relay.pull(stuck))
        assert [each["message_id"] for each in timed.answer.json()["envelopes"]] == [message_id]
        assert timed.seconds < 1
        assert relay.device(stuck).json()["pending"] == {"count": 1, "bytes": 10}
        assert code_of(relay.acknowledge(stuck, [message_id])) == "STORAGE_UNAVAILABLE"
        let_go()
    results = relay.acknowledge(stuck, [message_id]).json()["results"]
    assert results == [{"message_id": message_id, "status": "acknowledged"}]
    assert_sound()


def test_a_batch_that_names_a_stuck_device_does_not_hold_up_its_neighbours(
    relay: RelayClient,
) -> None:
    sender = make_device()
    pair = [make_device(), make_device()]
    # In the one order of locks, so that the batch has the neighbour's row while it waits.
    neighbour, stuck = sorted(pair, key=lambda each: (shard_of_device(each.id), each.id))
    entries = [
        {
            "recipient_device_id": str(device.id),
            "message_id": str(uuid4()),
            "protocol_version": 1,
            "ciphertext": "eHh4",
        }
        for device in (neighbour, stuck)
    ]

    def batch() -> httpx.Response:
        key = {"Idempotency-Key": new_key()}
        path = "/v1/envelopes/batch"
        return relay.call("POST", path, sender, json={"envelopes": entries}, headers=key)

    with usage_row_locked(stuck.id) as let_go:
        waiting = Background(batch)
        waiting_for_a_lock(1)
        timed = _timed(lambda: relay.submit(sender, neighbour))
        let_go()
        waiting.result()
    assert timed.answer.status_code == 201
    assert timed.seconds < 1
