"""The oracle of the faults (FAULTS): what must hold after healing, whatever happened before.

To the oracle of the races, which compares a journal with the tables, it adds what only the
relay as a whole can show: every accepted envelope is handed over or was acknowledged, the
outbox came to its end, whoever has mail was woken for it, a key still gives its bytes.
"""

import random
import time
from collections.abc import Iterable

from outbox.models import Event, EventState
from relay.models import Body, Envelope, Outcome
from tests.concurrency.oracle import Journal, Submitted, faults_found, walk_faults
from tests.faults.load import DurableJournal, Load, Mailbox
from tests.faults.world import A_LOST_JOB, MAINTENANCE, World
from tests.wakes.servers import Received

#: Keys that are tried again at the end: these many of all.
REPLAYS = 60


def assert_sound_after(load: Load, *, dead: int = 0) -> None:
    """Heal, drain, and find nothing wrong. At least one submit must have been accepted."""
    load.world.drain()
    assert load.journal.accepted, "nothing was accepted: there is nothing to judge"
    found = verdict(load, dead=dead)
    assert found == [], "; ".join(found)


def verdict(load: Load, *, dead: int = 0) -> list[str]:
    """Everything that is wrong, in words; the outbox must have had its time."""
    journal = DurableJournal.read(load.journal.path)  # what the disk holds is what counts
    found = faults_found(journal)
    for mailbox in load.mailboxes:
        found += _not_handed_over(load, mailbox, journal)
    found += outbox_faults(dead=dead)
    found += wake_faults(load.mailboxes, load.world.gateway.received)
    found += replay_faults(load, journal.accepted)
    if load.world.runs(MAINTENANCE):
        found += _left_behind(load.world)
    return found


def _not_handed_over(load: Load, mailbox: Mailbox, journal: Journal) -> list[str]:
    accepted = {
        str(entry.message_id) for entry in journal.accepted if entry.device_id == mailbox.device.id
    }
    seen = [each["message_id"] for each in load.client.walk(mailbox.device, limit=100)]
    return walk_faults(
        must=accepted - mailbox.asked_to_forget,
        may=mailbox.asked_to_forget - mailbox.forgotten,
        seen=seen,
    )


def outbox_faults(*, dead: int = 0) -> list[str]:
    """Whether the outbox is empty, but for so many dead letters."""
    found = []
    waiting = Event.objects.exclude(state=EventState.DEAD).count()
    if waiting:
        found.append(f"the outbox is not empty: {waiting}")
    died = Event.objects.filter(state=EventState.DEAD).count()
    if died != dead:
        found.append(f"dead letters: {died}, not {dead}")
    return found


def wake_faults(mailboxes: Iterable[Mailbox], received: Iterable[Received]) -> list[str]:
    """Whose last mail no wake followed. Mail cannot be older than its first attempt."""
    last: dict[str, float] = {}
    for wake in received:
        for mailbox in mailboxes:
            if mailbox.handle and mailbox.handle.encode() in wake.body:
                last[mailbox.handle] = max(wake.at, last.get(mailbox.handle, 0.0))
    slept = [
        mailbox
        for mailbox in mailboxes
        if mailbox.handle and mailbox.mail_since > last.get(mailbox.handle, 0.0)
    ]
    return [f"not woken: {len(slept)}"] if slept else []


def replay_faults(load: Load, accepted: list[Submitted]) -> list[str]:
    """Keys, taken at random, that do not give the bytes that they gave."""
    others = 0
    for entry in random.sample(accepted, min(REPLAYS, len(accepted))):
        answer = load.again(entry)
        same = (answer.status_code, answer.text) == (201, entry.accepted)
        others += 0 if same and answer.headers.get("Idempotency-Replayed") == "true" else 1
    return [f"keys with another answer: {others}"] if others else []


def _left_behind(world: World) -> list[str]:
    """Ciphertext of acknowledged mail goes as soon as the sweeps come by.

    A clock or a worker that was killed costs them the rest of a lease, or of a job's time.
    """
    for _ in range(4):
        until = time.monotonic() + 3
        while time.monotonic() < until:
            ended = Envelope.objects.exclude(outcome=Outcome.PENDING)
            if not ended.filter(cleaned_at__isnull=True).exists():
                return []
            time.sleep(0.05)
        world.pass_time(A_LOST_JOB)
    return [f"ciphertext that is left over: {Body.objects.count()}"]
