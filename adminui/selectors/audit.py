"""Whether the audit log is as it was written."""

from collections.abc import Iterator
from dataclasses import dataclass

from adminui.models import AuditEntry
from adminui.seals import BEFORE_THE_FIRST, seal

_CHUNK = 1_000


@dataclass(frozen=True)
class ChainReport:
    """What a walk along the chain found.

    `checked` counts the entries that hold before the first that does not; `broken_id` is
    that one (or the id that is missing) and `why` says what is wrong. `head` is the hash of
    the last entry that holds.
    """

    ok: bool
    checked: int
    head: bytes
    broken_id: int | None = None
    why: str = ""


def verify_chain() -> ChainReport:
    """Walk the whole chain from its first entry and stop at the first that does not hold.

    Entries that are appended meanwhile are walked as well. Entries cut off at the end leave
    no trace here: compare `head` with one noted before.
    """
    checked, head = 0, BEFORE_THE_FIRST
    for entry in _entries():
        wrong = _wrong(entry, expected_id=checked + 1, previous=head)
        if wrong:
            return ChainReport(False, checked, head, checked + 1, wrong)
        checked, head = checked + 1, bytes(entry.hash)
    return ChainReport(True, checked, head)


def _wrong(entry: AuditEntry, *, expected_id: int, previous: bytes) -> str:
    if entry.id > expected_id:
        return f"entry {expected_id} is missing; the next one is {entry.id}"
    if entry.id < expected_id:
        return f"entry {entry.id} stands before the first"
    if seal(entry) != bytes(entry.hash):
        return f"entry {entry.id} was changed: its content does not match its hash"
    if bytes(entry.previous_hash) != previous:
        return f"entry {entry.id} does not follow the entry before it"
    return ""


def _entries() -> Iterator[AuditEntry]:
    """All entries by id, a chunk a statement: the log may be longer than memory."""
    last_id = -1
    while True:
        chunk = list(AuditEntry.objects.filter(id__gt=last_id).order_by("id")[:_CHUNK])
        yield from chunk
        if len(chunk) < _CHUNK:
            return
        last_id = chunk[-1].id
