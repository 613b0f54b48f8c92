"""One message_id with other ciphertext, interleaved (the second half of FAULTS 19)."""

from collections import Counter
from uuid import UUID, uuid4

from django.db import connection

from idempotency.models import Record
from outbox.models import Event
from relay.models import Envelope
from tests.client import RelayClient, make_device
from tests.concurrency.crowd import together
from tests.concurrency.loads import submit_surely
from tests.concurrency.oracle import assert_sound
from tests.conftest import DatabaseClock

FIRST, SECOND = b"ciphertext-aaaaaaaa", b"ciphertext-bbbbbbbb"


def _tables_with(needle: str) -> list[str]:
    """Every table of the database that holds this text in some row."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = sorted(name for (name,) in cursor.fetchall())
        found = []
        for table in tables:
            cursor.execute(f"SELECT count(*) FROM {table} AS t WHERE t::text LIKE %s", [needle])
            if cursor.fetchone()[0]:
                found.append(table)
    return found


def _everywhere(ciphertext: bytes) -> list[str]:
    return sorted(
        set(_tables_with(f"%{ciphertext.hex()}%")) | set(_tables_with(f"%{ciphertext.decode()}%"))
    )


def _race(relay: RelayClient, message_id: UUID, recipient) -> list[tuple[bytes, object]]:  # type: ignore[no-untyped-def]
    sender = make_device()

    def one(ciphertext: bytes):  # type: ignore[no-untyped-def]
        return lambda: (
            ciphertext,
            submit_surely(relay, sender, recipient, ciphertext, message_id=message_id),
        )

    return together([one(FIRST if i % 2 else SECOND) for i in range(40)])


def test_the_first_ciphertext_of_a_message_id_stays_and_the_other_leaves_no_trace(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    clock.freeze("2026-06-01T10:30:00.000000Z")  # all in one hour: one security event
    recipient, message_id = make_device(), uuid4()
    answers = _race(relay, message_id, recipient)

    winners = {ciphertext for ciphertext, answer in answers if answer.status_code == 201}
    assert len(winners) == 1
    [won] = winners
    lost = SECOND if won == FIRST else FIRST
    same = Counter(answer.status_code for ciphertext, answer in answers if ciphertext == won)
    assert same == {201: 1, 200: 19}
    assert len({answer.text for ciphertext, answer in answers if ciphertext == won}) == 1
    other = [answer for ciphertext, answer in answers if ciphertext == lost]
    assert {(answer.status_code, answer.json()["code"]) for answer in other} == {
        (409, "MESSAGE_ID_CONFLICT")
    }

    assert _everywhere(won) == ["relay_body"]
    assert _everywhere(lost) == []
    assert Envelope.objects.get().message_id == message_id
    assert Record.objects.count() == 20  # the refused left no key behind
    [event] = Event.objects.filter(topic="security")
    assert (event.kind, event.device_id) == ("message_id_conflict", recipient.id)
    assert_sound()


def test_a_conflict_in_the_next_hour_is_told_again(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    clock.freeze("2026-06-01T10:59:59.999999Z")
    submit_surely(relay, sender, recipient, FIRST, message_id=message_id)
    for _ in range(2):
        submit_surely(relay, sender, recipient, SECOND, message_id=message_id)
    assert Event.objects.filter(topic="security").count() == 1
    clock.freeze("2026-06-01T11:00:00.000000Z")
    submit_surely(relay, sender, recipient, SECOND, message_id=message_id)
    assert Event.objects.filter(topic="security").count() == 2
