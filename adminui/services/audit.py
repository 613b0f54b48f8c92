"""Writing the audit log.

An entry is written in the transaction of what it tells of: neither exists without the other.
One writer at a time holds the chain until its commit, so ids are dense, in the order of the
commits, and every entry seals the one before it. As the lock is the last that any
transaction takes (DESIGN rule 4.2), write the entry after everything else.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from adminui.models import AuditEntry
from adminui.seals import BEFORE_THE_FIRST, AuditRecord, plain_json, plain_text, record_of, seal
from config.kernel import advisory, clock
from config.kernel.database import assert_in_transaction

Columns = Mapping[str, Any] | None


def audit_write(
    *,
    actor: str,
    action: str,
    target: str = "",
    before: Columns = None,
    after: Columns = None,
    reason: str = "",
    source: str = "",
    event_id: UUID | None = None,
) -> AuditRecord:
    """Append one entry, inside the caller's transaction; returns it.

    `event_id` makes it idempotent: an entry that has it is returned and nothing is written,
    so that an event delivered twice is told once. Raises ValueError for what cannot be
    stored, and RuntimeError outside a transaction.
    """
    assert_in_transaction()
    entry = AuditEntry(
        actor=plain_text("actor", actor, 150),
        source=plain_text("source", source, 64),
        action=plain_text("action", action, 64),
        target=plain_text("target", target, 200),
        before=plain_json("before", before),
        after=plain_json("after", after),
        reason=plain_text("reason", reason),
        event_id=event_id,
    )
    advisory.hold_until_commit(advisory.AdvisoryLock.AUDIT_CHAIN)
    told = None if event_id is None else AuditEntry.objects.filter(event_id=event_id).first()
    return record_of(told or _append(entry))


def _append(entry: AuditEntry) -> AuditEntry:
    last = AuditEntry.objects.order_by("-id").values_list("id", "hash").first()
    last_id, last_hash = last or (0, BEFORE_THE_FIRST)
    entry.id = last_id + 1
    entry.previous_hash = bytes(last_hash)
    entry.at = clock.read()
    entry.hash = seal(entry)
    entry.save(force_insert=True)
    return entry
