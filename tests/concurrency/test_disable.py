"""A device is disabled while submits to it run (FAULTS 29)."""

import threading
import time
from datetime import timedelta

from quotas.models import QueueUsage
from relay.models import Body, Device, Envelope
from tests.client import RelayClient, make_device, make_provisioner
from tests.concurrency.crowd import Background, Crew, together
from tests.concurrency.loads import code_of, submit_surely, sweep
from tests.concurrency.oracle import Journal, assert_sound
from tests.concurrency.outside import connect, waiting_for_a_lock
from tests.conftest import DatabaseClock


def test_nothing_is_accepted_after_the_202_and_no_orphan_is_left(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    provisioner, sender, recipient = make_provisioner(), make_device(), make_device()
    journal = Journal()
    answers: list[tuple[float, int, str]] = []
    enough = threading.Event()

    def submit() -> None:
        began = time.monotonic()
        answer = submit_surely(relay, sender, recipient, b"x" * 100, journal=journal)
        answers.append((began, answer.status_code, code_of(answer)))
        if len(answers) > 40:
            enough.set()

    with Crew() as crew:
        crew.add(submit, 8)
        assert enough.wait(30)
        deleted = relay.call("DELETE", f"/v1/devices/{recipient.id}", provisioner)
        told_at, told_with = time.monotonic(), len(journal.accepted)
        assert deleted.status_code == 202
        more = len(answers) + 24
        while len(answers) < more:
            time.sleep(0.01)

    # Whoever began after the 202 was told so; whoever was under way got either, never else.
    assert {(status, code) for _, status, code in answers} == {
        (201, ""),
        (404, "RECIPIENT_UNKNOWN"),
    }
    late = [status for began, status, _ in answers if began > told_at]
    assert len(late) >= 16
    assert set(late) == {404}
    # What is stored is what was accepted, and nothing came after the 202 was read.
    stored = Envelope.objects.filter(device_id=recipient.id)
    assert stored.count() == len(journal.accepted)
    assert len(journal.accepted) - told_with <= 8  # their answers were on the way
    assert_sound(journal)

    sweep()
    assert set(stored.values_list("outcome", flat=True)) == {"purged"}
    assert not Body.objects.exists()
    usage = QueueUsage.objects.get(device_id=recipient.id)
    assert (usage.pending_count, usage.pending_bytes) == (0, 0)
    assert_sound(journal)

    clock.shift(timedelta(days=9))
    sweep()  # the last receipt lapses
    sweep()  # and the queue without receipts goes
    assert not stored.exists()
    assert not QueueUsage.objects.filter(device_id=recipient.id).exists()
    assert not Device.objects.filter(device_id=recipient.id).exists()
    assert_sound()


def test_a_submit_that_waited_behind_the_disabling_is_refused(relay: RelayClient) -> None:
    """The recipient check is made under the lock, not before it."""

    sender, recipient = make_device(), make_device()
    with connect() as outside:
        outside.execute(
            "UPDATE quotas_queueusage SET closed_at = now() WHERE device_id = %s", [recipient.id]
        )
        submit = Background(lambda: relay.submit(sender, recipient))
        waiting_for_a_lock(1)
        outside.commit()
    answer = submit.result()
    assert (answer.status_code, code_of(answer)) == (404, "RECIPIENT_UNKNOWN")
    assert not Envelope.objects.exists()
    assert_sound()


def test_disabling_twice_at_once_is_202_twice(relay: RelayClient) -> None:

    provisioner, device = make_provisioner(), make_device()
    answers = together([lambda: relay.call("DELETE", f"/v1/devices/{device.id}", provisioner)] * 8)
    assert [answer.status_code for answer in answers] == [202] * 8
    assert QueueUsage.objects.get(device_id=device.id).closed_at is not None


def test_a_put_racing_a_delete_never_revives_the_device(relay: RelayClient) -> None:
    """Whichever comes first: after the 202 the device is disabled and stays so."""

    provisioner = make_provisioner()
    put = {"json": {"token_sha256": "ab" * 32}}
    for _ in range(5):
        device = make_device()
        path = f"/v1/devices/{device.id}"
        *puts, deleted = together(
            [lambda path=path: relay.call("PUT", path, provisioner, **put)] * 4
            + [lambda path=path: relay.call("DELETE", path, provisioner)]
        )
        assert deleted.status_code == 202
        assert {answer.status_code for answer in puts} <= {200, 409}
        assert Device.objects.get(device_id=device.id).state == "disabled"
        assert code_of(relay.call("PUT", path, provisioner, **put)) == "DEVICE_DISABLED"
