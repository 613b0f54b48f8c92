"""Everything at once on the same rows: no deadlock (FAULTS 21)."""

import random
import threading
import time
from datetime import timedelta

import psycopg

from outbox.models import SweepRun
from tests.client import RelayClient, make_device, make_provisioner
from tests.concurrency.crowd import Crew, together
from tests.concurrency.deadlocks import Watched, deadlocks, watched, watched_relay
from tests.concurrency.loads import acknowledge_surely, submit_surely, sweep
from tests.concurrency.oracle import Journal, assert_sound
from tests.concurrency.outside import connect
from tests.conftest import DatabaseClock

__all__ = ["watched", "watched_relay"]

MESSAGE_IDS = [f"00000000-0000-4000-8000-{number:012d}" for number in range(1000)]


def test_reversed_acks_sweeps_and_submits_together_end_in_no_deadlock(
    watched: Watched, watched_relay: RelayClient, clock: DatabaseClock
) -> None:
    sender = make_device()
    recipients = [make_device() for _ in range(3)]
    ids = {
        device.id: [
            submit_surely(watched_relay, sender, device, b"x" * 20).json()["message_id"]
            for _ in range(60)
        ]
        for device in recipients
    }
    journal = Journal()
    rounds = [0, 0]

    def acknowledge(backwards: bool) -> bool:
        """Growing batches of the same ids; one from the front, the other from the back."""
        turn = rounds[backwards] = rounds[backwards] + 1
        for device in recipients:
            batch = ids[device.id][: 5 * turn]
            acknowledge_surely(watched_relay, device, batch[::-1] if backwards else batch)
        return turn < 12

    def submit() -> None:
        device, ttl = random.choice(recipients), random.choice([60, 3600])
        answer = submit_surely(watched_relay, sender, device, journal=journal, ttl_seconds=ttl)
        assert answer.status_code == 201

    def batch_submit() -> None:
        """Recipients in any order, several at once."""
        entries = [
            {
                "recipient_device_id": str(device.id),
                "message_id": str(random.choice(MESSAGE_IDS)),
                "protocol_version": 1,
                "ciphertext": "eHh4",
                "ttl_seconds": 60,
            }
            for device in random.sample(recipients, 3)
        ]
        key = {"Idempotency-Key": f"batch-{random.random()}"}
        path = "/v1/envelopes/batch"
        answer = watched_relay.call("POST", path, sender, json={"envelopes": entries}, headers=key)
        assert answer.status_code in (200, 503)

    minutes = iter(range(1, 1000))
    moving = threading.Lock()

    def sweep_later() -> None:
        with moving:
            clock.shift(timedelta(seconds=61 * next(minutes)))
        sweep()

    with Crew() as crew, Crew() as ackers:
        crew.add(submit, 3)
        crew.add(batch_submit, 4)
        crew.add(sweep_later, 2)  # two sweepers at once
        ackers.add(lambda: acknowledge(False))
        ackers.add(lambda: acknowledge(True))
        ackers.wait()
    failed = SweepRun.objects.exclude(last_error="")
    assert list(failed.values_list("name", "last_error")) == []
    assert watched.stop_and_count() == 0
    assert_sound()


def test_devices_are_disabled_made_and_written_to_at_once_without_a_deadlock(
    watched: Watched, watched_relay: RelayClient
) -> None:
    provisioner, sender = make_provisioner(), make_device()
    devices = [make_device() for _ in range(6)]
    calls = []
    for device in devices:
        path = f"/v1/devices/{device.id}"
        calls += [
            lambda device=device: submit_surely(watched_relay, sender, device),
            lambda path=path: watched_relay.call("DELETE", path, provisioner),
            lambda path=path: watched_relay.call(
                "PUT", path, provisioner, json={"token_sha256": "cd" * 32}
            ),
        ]
    answers = together([*calls, sweep, sweep])
    statuses = {getattr(answer, "status_code", 200) for answer in answers}
    assert statuses <= {200, 201, 202, 404, 409, 503}
    assert watched.stop_and_count() == 0
    assert_sound()


def test_the_counter_sees_a_deadlock() -> None:
    """The check of the check: two sessions take two rows in opposite order."""
    rows = [make_device().id, make_device().id]
    before = deadlocks()
    lock = "SELECT 1 FROM quotas_queueusage WHERE device_id = %s FOR UPDATE"
    meet = threading.Barrier(2)

    def session(first: int) -> bool:
        with connect() as mine:
            mine.execute("SET deadlock_timeout = '50ms'")
            mine.execute(lock, [rows[first]])
            meet.wait(10)
            try:
                mine.execute(lock, [rows[1 - first]])
            except psycopg.errors.DeadlockDetected:
                return True
            finally:
                mine.rollback()
        return False

    assert sorted(together([lambda: session(0), lambda: session(1)])) == [False, True]
    deadline = time.monotonic() + 10  # the sessions tell it while they end
    while deadlocks() == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert deadlocks() == before + 1
