"""A walk through a queue that changes meanwhile: nothing missing, nothing twice (FAULTS 16, 27).

The same oracle is shown two broken builds, and fails them.
"""

import random
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from uuid import uuid4

import pytest

from quotas.models import QueueUsage
from relay.models import Envelope
from tests.client import Party, RelayClient, make_device
from tests.concurrency.broken import (
    CountedInPython,
    Pause,
    places_from_a_sequence,
    under,
    without_lock,
)
from tests.concurrency.crowd import Background, Crew, together
from tests.concurrency.inside import InsideClient, inside, reference_path
from tests.concurrency.loads import submit_surely, sweep
from tests.concurrency.oracle import Journal, assert_sound, faults_found, walk_faults
from tests.concurrency.outside import connect, waiting_for_a_lock
from tests.concurrency.walks import Walk
from tests.conftest import DatabaseClock

WRITERS, EACH = 8, 30
#: Of ten envelopes, so many expire meanwhile, and so many are acknowledged before they are read.
SHORT, TAKEN = 2, 2


class _Traffic:
    """Writers to one queue. Keeps apart what a walk must hand over and what it may."""

    def __init__(self, relay: RelayClient, recipient: Party) -> None:
        self.journal = Journal()
        self.must: set[str] = set()
        self.may: set[str] = set()
        self.taken: list[str] = []
        self._relay = relay
        self._recipient = recipient
        self._sender = make_device()
        self._left = WRITERS * EACH
        self._lock = threading.Lock()

    def write(self) -> bool:
        """One envelope; False when enough were written."""
        with self._lock:
            self._left -= 1
            number = self._left
        if number < 0:
            return False
        kind = number % 10
        members = {"ttl_seconds": 60} if kind < SHORT else {}
        message_id = uuid4()
        if kind < SHORT + TAKEN:
            self.may.add(str(message_id))  # known before it can be handed over
        answer = submit_surely(
            self._relay,
            self._sender,
            self._recipient,
            random.randbytes(50),
            message_id=message_id,
            journal=self.journal,
            **members,
        )
        assert answer.status_code == 201
        if kind >= SHORT + TAKEN:
            self.must.add(str(message_id))
        elif kind >= SHORT:
            self.taken.append(str(message_id))
        return True

    def acknowledge(self, walk: Walk) -> None:
        """What was read, and some that was not."""
        ids = [*self.taken[-5:], *random.sample(walk.seen, min(5, len(walk.seen)))]
        if ids:
            assert self._relay.acknowledge(self._recipient, ids).status_code in (200, 503)
        time.sleep(0.01)


__all__ = ["inside", "reference_path"]


def _move_time(clock: DatabaseClock, stopping: threading.Event) -> None:
    """Every now and then a minute passes, so that the short ones expire; and a sweep runs."""
    for minutes in range(1, 1000):
        clock.shift(timedelta(seconds=61 * minutes))
        sweep()
        if stopping.wait(0.1):
            return


def test_a_walk_during_submits_acks_and_expiry_misses_nothing_and_repeats_nothing(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    recipient = make_device()
    traffic, walk = _Traffic(relay, recipient), Walk(relay, recipient)
    with Crew() as crew, Crew() as writers:
        crew.add(lambda: traffic.acknowledge(walk))
        crew.add(lambda: _move_time(clock, crew.stopping))
        crew.add(walk.step)
        writers.add(traffic.write, WRITERS)
        writers.wait()
    walk.to_the_end()
    assert len(traffic.must) == 144  # 6 of 10 of 240
    assert walk_faults(must=traffic.must, may=traffic.may, seen=walk.seen) == []
    assert_sound(traffic.journal)
    outcomes = set(Envelope.objects.values_list("outcome", flat=True))
    assert {"acknowledged", "expired"} <= outcomes  # it did happen meanwhile
    # Acknowledging is one thing and reading another: a walk from the start shows what is left.
    left = {envelope["message_id"] for envelope in relay.walk(recipient)}
    assert left <= traffic.must | traffic.may


def test_two_walks_with_different_pages_hand_over_the_same_in_the_same_order(
    relay: RelayClient,
) -> None:
    sender, recipient = make_device(), make_device()
    small, large = Walk(relay, recipient, limit=1), Walk(relay, recipient, limit=100)
    accepted: set[str] = set()

    def write() -> bool:
        answer = submit_surely(relay, sender, recipient)
        accepted.add(answer.json()["message_id"])
        return len(accepted) < 100

    with Crew() as readers, Crew() as writers:
        readers.add(small.step)
        readers.add(large.step)
        writers.add(write, 8)
        writers.wait()
    small.to_the_end()
    large.to_the_end()
    assert small.seen == large.seen
    assert set(large.seen) == accepted


# --- Commit inversion, precisely (FAULTS 16) ---------------------------------------------------


def test_a_place_taken_but_not_committed_holds_up_the_next_one_and_leaves_no_gap(
    relay: RelayClient,
) -> None:
    """Over HTTP: A has its place and waits before its commit, B follows, a reader pages."""
    sender, recipient = make_device(), make_device()
    walk = Walk(relay, recipient)
    a_id, b_id = uuid4(), uuid4()
    with connect() as outside:
        outside.execute("LOCK TABLE outbox_event IN SHARE MODE")  # the last thing A writes
        a = Background(lambda: submit_surely(relay, sender, recipient, message_id=a_id))
        waiting_for_a_lock(1)
        b = Background(lambda: submit_surely(relay, sender, recipient, message_id=b_id))
        waiting_for_a_lock(2)
        assert walk.step() == []
        outside.rollback()
    assert {a.result().status_code, b.result().status_code} == {201}
    walk.to_the_end()
    assert set(walk.seen) == {str(a_id), str(b_id)}
    in_line = Envelope.objects.order_by("seq").values_list("message_id", flat=True)
    assert walk.seen == [str(message_id) for message_id in in_line]
    assert_sound()


@pytest.mark.parametrize(("build", "faults"), [("sound", []), ("on a sequence", ["missing: 1"])])
def test_commit_inversion_is_a_gap_only_in_a_build_whose_cursor_is_on_a_sequence(
    inside: InsideClient, build: str, faults: list[str]
) -> None:
    sender, recipient = make_device(), make_device()
    pause, walk = Pause('INSERT INTO "outbox_event"'), Walk(inside, recipient)
    a_id, b_id = uuid4(), uuid4()
    with ExitStack() as stack:
        wrappers = []
        if build == "on a sequence":
            stack.enter_context(places_from_a_sequence())
            # Such a build keeps no count of places: let no cursor look like one from the future.
            QueueUsage.objects.filter(device_id=recipient.id).update(next_seq=1_000_000)
            wrappers = [without_lock]
        a_submits = under(
            [*wrappers, pause], lambda: submit_surely(inside, sender, recipient, message_id=a_id)
        )
        b_submits = under(
            wrappers, lambda: submit_surely(inside, sender, recipient, message_id=b_id)
        )
        a = Background(a_submits)
        assert pause.reached.wait(10)
        b = Background(b_submits)
        if build == "sound":
            waiting_for_a_lock(1)  # B stands behind A
        else:
            b.result()  # B overtakes A
        walk.step()
        pause.go_on.set()
        assert {a.result().status_code, b.result().status_code} == {201}
        walk.to_the_end()
    assert walk_faults(must=[str(a_id), str(b_id)], may=[], seen=walk.seen) == faults


@pytest.mark.parametrize("build", ["sound", "without the lock"])
def test_the_oracle_finds_a_count_without_the_lock(inside: InsideClient, build: str) -> None:
    sender, recipient = make_device(), make_device()
    journal, together_now = Journal(), threading.Barrier(2)

    def one() -> object:
        wrappers = []
        if build == "without the lock":
            wrappers = [CountedInPython(recipient.id, 10, together_now)]
        submits = under(wrappers, lambda: submit_surely(inside, sender, recipient, journal=journal))
        return submits().status_code

    with ExitStack() as stack:
        if build == "without the lock":
            stack.enter_context(places_from_a_sequence())
        assert together([one, one]) == [201, 201]
    found = [text.partition(":")[0] for text in faults_found(journal)]
    assert ("usage differs from the sums" in found) is (build == "without the lock")
    assert bool(found) is (build == "without the lock")
