"""The audit log: its chain, what breaks it, and who may not touch it."""

import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction

from adminui.models import AuditEntry
from adminui.seals import AuditRecord, seal
from adminui.selectors import audit
from adminui.selectors.audit import verify_chain
from adminui.services.audit import audit_write
from config.kernel.database import durable_transaction

EVENT = UUID("0189d1b2-0000-7000-8000-000000000001")


def write(**values: Any) -> AuditRecord:
    """One entry in a transaction of its own."""
    with durable_transaction():
        return audit_write(**{"actor": "command:root", "action": "limits.set", **values})


def write_many(count: int) -> None:
    for number in range(count):
        write(target=f"target {number + 1}")


@contextmanager
def tampering() -> Iterator[Callable[[str], None]]:
    """SQL as somebody with the superuser's rights could run it: the trigger is off."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield cursor.execute


def test_an_empty_log_verifies() -> None:
    report = verify_chain()
    assert (report.ok, report.checked, report.head) == (True, 0, bytes(32))


def test_the_first_entry_is_number_one_and_follows_32_zero_bytes() -> None:
    first, second = write(), write()
    assert (first.id, first.previous_hash) == (1, bytes(32))
    assert (second.id, second.previous_hash) == (2, first.hash)


def framed(text: str | None) -> bytes:
    """A column as the docstring of adminui.seals describes it."""
    if text is None:
        return b"\x00"
    encoded = text.encode("utf-8")
    return b"\x01" + struct.pack(">Q", len(encoded)) + encoded


def test_the_hash_is_sha256_over_the_documented_encoding(clock: Any) -> None:
    clock.freeze("2026-12-01 04:05:06.000070+00")
    entry = write(
        target="limits",
        before={"b": None, "a": [1, True, "é"]},
        after={},
        reason="",
        event_id=EVENT,
    )
    expected = b"relay audit 1\x00" + b"".join(
        [
            framed("1"),
            framed("2026-12-01T04:05:06.000070Z"),
            framed("command:root"),
            framed(""),
            framed("limits.set"),
            framed("limits"),
            framed('{"a":[1,true,"é"],"b":null}'),
            framed("{}"),
            framed(""),
            framed("0189d1b2-0000-7000-8000-000000000001"),
            b"\x01" + struct.pack(">Q", 32) + bytes(32),
        ]
    )
    assert entry.hash == hashlib.sha256(expected).digest()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"before": {"z": 1, "a": 2, "": {"y": [], "x": {}}}},
        {"before": {"big": 2**63, "negative": -(2**70), "zero": 0, "no": False}},
        {"after": {"tuple": (1, 2), "text": 'quote " backslash \\ tab \t line \n'}},
        {"after": {"astral": "😀", "combining": "e\u0301", "bidi": "\u202e", "sep": "\u2028"}},
        {"reason": "line\nbreaks and  two spaces ", "target": "Ünïcödé 😀"},
        {"actor": "x" * 150, "source": "y" * 64, "action": "z" * 64, "target": "t" * 200},
    ],
)
def test_what_postgresql_gives_back_has_the_hash_that_was_stored(values: dict[str, Any]) -> None:
    written = write(**values)
    row = AuditEntry.objects.get(id=written.id)
    assert seal(row) == bytes(row.hash) == written.hash
    assert verify_chain().ok


def test_null_and_empty_do_not_share_a_seal(clock: Any) -> None:
    clock.freeze("2026-12-01 00:00:00+00")
    row = AuditEntry(id=1, at=datetime(2026, 12, 1, tzinfo=UTC), actor="a", action="b")
    row.previous_hash = bytes(32)
    with_null = seal(row)
    row.before = {}
    assert seal(row) != with_null


def test_text_cannot_move_between_columns_under_one_seal() -> None:
    row = AuditEntry(id=1, at=datetime(2026, 12, 1, tzinfo=UTC), previous_hash=bytes(32))
    row.actor, row.source = "ab", "c"
    one = seal(row)
    row.actor, row.source = "a", "bc"
    assert seal(row) != one
    # Nor where the text itself holds the byte that marks a column.
    row.actor, row.source = "a\1b", "c"
    one = seal(row)
    row.actor, row.source = "a", "b\1c"
    assert seal(row) != one


@pytest.mark.parametrize(
    "values",
    [
        {"reason": "a\0b"},
        {"actor": "a\0b"},
        {"target": "half \ud83d"},
        {"before": {"text": "a\0b"}},
        {"before": {"\0": 1}},
        {"after": {"rate": 0.5}},
        {"after": {"when": datetime(2026, 12, 1, tzinfo=UTC)}},
        {"after": {1: "a number for a name"}},
        {"actor": "x" * 151},
        {"source": "x" * 65},
        {"action": "x" * 65},
        {"target": "x" * 201},
    ],
)
def test_what_cannot_be_stored_unchanged_is_refused_before_it_is_written(
    values: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=r"characters|cannot be stored|rewrite"):
        write(**values)
    assert not AuditEntry.objects.exists()


def test_writing_outside_a_transaction_is_refused() -> None:
    with pytest.raises(RuntimeError):
        audit_write(actor="command:root", action="limits.set")


def test_an_entry_goes_with_its_transaction() -> None:
    with pytest.raises(ZeroDivisionError), durable_transaction():
        audit_write(actor="command:root", action="limits.set")
        raise ZeroDivisionError
    assert not AuditEntry.objects.exists()
    assert write().id == 1


def test_an_event_that_is_told_twice_is_written_once() -> None:
    first = write(event_id=EVENT, reason="first")
    write()
    again = write(event_id=EVENT, reason="second")
    assert again == first
    assert AuditEntry.objects.count() == 2


def test_an_entry_that_was_changed_is_named() -> None:
    write_many(5)
    with tampering() as run:
        run("UPDATE adminui_auditentry SET reason = 'other' WHERE id = 3")
    report = verify_chain()
    assert (report.ok, report.checked, report.broken_id) == (False, 2, 3)
    assert report.why == "entry 3 was changed: its content does not match its hash"


@pytest.mark.parametrize(
    "assignment",
    [
        "at = at + interval '1 microsecond'",
        "actor = 'someone'",
        "source = 'x'",
        "action = 'x'",
        "target = 'x'",
        "before = '{}'",
        "after = '{\"a\": 2}'",
        "after = NULL",
        "reason = ' '",
        "event_id = gen_random_uuid()",
        "hash = sha256('x')",
        "previous_hash = sha256('x')",
    ],
)
def test_no_column_can_be_changed_unseen(assignment: str) -> None:
    write_many(1)
    write(after={"a": 1})
    write_many(1)
    with tampering() as run:
        run(f"UPDATE adminui_auditentry SET {assignment} WHERE id = 2")
    assert (verify_chain().ok, verify_chain().broken_id) == (False, 2)


def test_an_entry_that_is_missing_is_named() -> None:
    write_many(5)
    with tampering() as run:
        run("DELETE FROM adminui_auditentry WHERE id = 3")
    report = verify_chain()
    assert (report.ok, report.checked, report.broken_id) == (False, 2, 3)
    assert report.why == "entry 3 is missing; the next one is 4"


def test_a_missing_first_entry_is_named() -> None:
    write_many(2)
    with tampering() as run:
        run("DELETE FROM adminui_auditentry WHERE id = 1")
    assert verify_chain().broken_id == 1


def test_a_gap_that_was_closed_by_renumbering_is_named() -> None:
    write_many(5)
    with tampering() as run:
        run("DELETE FROM adminui_auditentry WHERE id = 3")
        run("UPDATE adminui_auditentry SET id = 3 WHERE id = 4")
        run("UPDATE adminui_auditentry SET id = 4 WHERE id = 5")
    assert (verify_chain().ok, verify_chain().broken_id) == (False, 3)


def test_two_entries_that_changed_places_are_named() -> None:
    write_many(5)
    with tampering() as run:
        run("UPDATE adminui_auditentry SET id = 100 WHERE id = 2")
        run("UPDATE adminui_auditentry SET id = 2 WHERE id = 4")
        run("UPDATE adminui_auditentry SET id = 4 WHERE id = 100")
    assert (verify_chain().ok, verify_chain().broken_id) == (False, 2)


def test_an_entry_sealed_anew_no_longer_fits_the_next() -> None:
    write_many(3)
    forged = AuditEntry.objects.get(id=2)
    forged.reason = "forged"
    with tampering():
        AuditEntry.objects.filter(id=2).update(reason="forged", hash=seal(forged))
    report = verify_chain()
    assert (report.ok, report.broken_id) == (False, 3)
    assert report.why == "entry 3 does not follow the entry before it"


def test_entries_cut_off_at_the_end_show_in_the_head() -> None:
    write_many(3)
    head = verify_chain().head
    assert head == bytes(AuditEntry.objects.get(id=3).hash)
    with tampering() as run:
        run("DELETE FROM adminui_auditentry WHERE id = 3")
    assert verify_chain().ok
    assert verify_chain().head != head


def test_a_chain_longer_than_one_chunk_is_walked_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit, "_CHUNK", 3)
    write_many(9)
    assert verify_chain().checked == 9
    with tampering() as run:
        run("UPDATE adminui_auditentry SET actor = 'x' WHERE id = 7")
    assert (verify_chain().checked, verify_chain().broken_id) == (6, 7)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE adminui_auditentry SET reason = 'other'",
        "DELETE FROM adminui_auditentry",
        "UPDATE adminui_auditentry SET id = 7 WHERE id = 1",
    ],
)
def test_sql_cannot_change_the_log(statement: str) -> None:
    write_many(2)
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute(statement)
    assert verify_chain().checked == 2


def test_the_orm_cannot_change_the_log() -> None:
    write_many(2)
    row = AuditEntry.objects.get(id=1)
    row.reason = "other"
    changes: list[Callable[[], object]] = [
        row.save,
        row.delete,
        lambda: AuditEntry.objects.update(reason="other"),
        lambda: AuditEntry.objects.filter(id=2).delete(),
        lambda: AuditEntry.objects.bulk_update([row], ["reason"]),
    ]
    for change in changes:
        with pytest.raises(DatabaseError, match="Cannot update or delete"):
            change()
    assert verify_chain().checked == 2
    assert [entry.reason for entry in AuditEntry.objects.all()] == ["", ""]


def test_twenty_writers_at_once_make_one_dense_chain() -> None:
    barrier = threading.Barrier(20)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait(30)
            for turn in range(5):
                write(target=f"writer {number}", after={"turn": turn})
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert list(AuditEntry.objects.order_by("id").values_list("id", flat=True)) == list(
        range(1, 101)
    )
    report = verify_chain()
    assert (report.ok, report.checked) == (True, 100)
    times = list(AuditEntry.objects.order_by("id").values_list("at", flat=True))
    assert times == sorted(times)
