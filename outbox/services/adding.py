"""Adding events to the outbox, inside the business transaction (OUTBOX.md, "Added")."""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

import uuid_utils.compat

from config.kernel.database import assert_in_transaction
from outbox.models import Event

#: The topic of security events, which end in the audit log.
SECURITY = "security"


def events_add(*, topic: str, shard: int, device_ids: Iterable[UUID], now: datetime) -> None:
    """Write down that something is to be done for these queues once this transaction commits."""
    assert_in_transaction()
    Event.objects.bulk_create(
        Event(
            shard=shard,
            event_id=uuid_utils.compat.uuid7(),
            topic=topic,
            device_id=device_id,
            next_at=now,
            created_at=now,
        )
        for device_id in device_ids
    )


def security_event_add(
    *, event_id: UUID, kind: str, shard: int, device_id: UUID, now: datetime
) -> None:
    """Write down something that an admin should know of.

    The caller gives the id: a second event of that id while the first is on its way adds
    nothing.
    """
    assert_in_transaction()
    event = Event(
        shard=shard,
        event_id=event_id,
        topic=SECURITY,
        kind=kind,
        device_id=device_id,
        next_at=now,
        created_at=now,
    )
    Event.objects.bulk_create([event], ignore_conflicts=True)
