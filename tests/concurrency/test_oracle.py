"""The oracle itself: for everything that it promises to find, one planted fault."""

from uuid import UUID, uuid4

import pytest
from django.db import connection

from tests.client import make_device
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import submit_surely
from tests.concurrency.oracle import Journal, faults_found, walk_faults


@pytest.fixture
def journal() -> Journal:
    """Three envelopes in one queue, all well."""
    made = Journal()
    with InsideClient() as relay:
        sender, recipient = make_device(), make_device()
        for _ in range(3):
            submit_surely(relay, sender, recipient, journal=made)
    return made


def _plant(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_nothing_is_found_where_nothing_is_wrong(journal: Journal) -> None:
    assert faults_found(journal) == []


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (
            "UPDATE quotas_queueusage SET pending_count = pending_count - 1 WHERE next_seq = 4",
            ["usage differs from the sums"],
        ),
        (
            "UPDATE quotas_queueusage SET pending_bytes = pending_bytes + 1 WHERE next_seq = 4",
            ["usage differs from the sums"],
        ),
        (
            "UPDATE relay_envelope SET outcome = 'expired', cleanup_after = now() WHERE seq = 2",
            ["usage differs from the sums"],
        ),
        (
            "WITH moved AS (UPDATE relay_envelope SET seq = 5 WHERE seq = 3) "
            "UPDATE relay_body SET seq = 5 WHERE seq = 3",
            ["seq is not dense"],
        ),
        (
            "UPDATE quotas_queueusage SET next_seq = next_seq + 1 WHERE next_seq = 4",
            ["seq is not dense"],
        ),
        (
            "UPDATE quotas_queueusage SET next_seq = 2 WHERE next_seq = 1",
            ["the line is ahead of what is stored"],
        ),
        (
            "UPDATE relay_envelope SET accepted_at = accepted_at - interval '1 h' WHERE seq = 3",
            ["accepted_at does not rise with seq"],
        ),
        (
            "DELETE FROM quotas_queueusage WHERE next_seq = 4",
            ["an envelope without a queue"],
        ),
        ("DELETE FROM relay_body WHERE seq = 1", ["an envelope without its ciphertext"]),
        (
            "UPDATE relay_body SET ciphertext = ciphertext || 'x' WHERE seq = 1",
            ["an envelope without its ciphertext"],
        ),
        (
            "UPDATE relay_envelope SET cleaned_at = now(), size = NULL, outcome = 'acknowledged', "
            "cleanup_after = NULL WHERE seq = 1",
            ["usage differs from the sums", "ciphertext without its envelope"],
        ),
        ("UPDATE idempotency_record SET status = 0", ["a key without its answer"]),
        (
            "WITH gone AS (DELETE FROM relay_envelope), bodies AS (DELETE FROM relay_body) "
            "UPDATE quotas_queueusage SET pending_count = 0, pending_bytes = 0, next_seq = 1",
            ["accepted but not stored"],
        ),
    ],
)
def test_a_planted_fault_is_found(journal: Journal, planted: str, found: list[str]) -> None:
    _plant(planted)
    assert [text.partition(":")[0] for text in faults_found(journal)] == found


def test_a_message_that_is_there_twice_is_found(journal: Journal) -> None:
    """The constraint stands in the way of planting one, so it is put aside for the moment."""
    [unique] = [
        name
        for name, facts in connection.introspection.get_constraints(
            connection.cursor(), "relay_envelope"
        ).items()
        if facts["unique"] and "message_id" in facts["columns"]
    ]
    _plant(f"ALTER TABLE relay_envelope DROP CONSTRAINT {unique}")
    try:
        _plant(
            "UPDATE relay_envelope SET message_id = (SELECT min(message_id::text)::uuid "
            "FROM relay_envelope) WHERE seq < 3"
        )
        found = [text.partition(":")[0] for text in faults_found()]
    finally:
        _plant("DELETE FROM relay_envelope")
        _plant(
            f"ALTER TABLE relay_envelope ADD CONSTRAINT {unique} "
            "UNIQUE (shard, device_id, message_id)"
        )
    assert found == ["a message id is there twice"]


def test_what_was_never_sent_and_what_was_answered_twice_is_found(journal: Journal) -> None:
    forgotten = journal.submitted.pop()
    assert faults_found(journal) == ["stored but never sent: 1"]
    journal.submitted.append(forgotten)
    first = journal.submitted[0]
    journal.add(first.device_id, first.message_id, first.key, "another answer")
    assert faults_found(journal) == ["one message got different answers"]


def test_a_walk_is_judged_by_what_must_and_what_may_be_seen() -> None:
    a, b, c = (UUID(int=number) for number in (1, 2, 3))
    assert walk_faults(must=[a, b], may=[c], seen=[a, b]) == []
    assert walk_faults(must=[a, b], may=[c], seen=[a, c, b]) == []
    assert walk_faults(must=[a, b], may=[c], seen=[a, c]) == ["missing: 1"]
    assert walk_faults(must=[a], may=[c], seen=[a, c, c]) == ["twice: 1"]
    assert walk_faults(must=[a], may=[], seen=[a, uuid4()]) == ["never accepted: 1"]
