"""Adding events to the outbox, inside the business transaction (OUTBOX.md, "Added")."""

from collections.abc import Iterable, Mapping
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


def security_events_add(
    *, kind: str, shard: int, devices: Mapping[UUID, UUID], now: datetime
) -> None:
    """Write down, by event id, at which queues something happened that an admin should know of.

    The caller gives the ids: a second event of an id while the first is on its way adds
    nothing.
    """
    assert_in_transaction()
    Event.objects.bulk_create(
        [
            Event(
                shard=shard,
                event_id=event_id,
                topic=SECURITY,
                kind=kind,
                device_id=device_id,
                next_at=now,
                created_at=now,
            )
            for event_id, device_id in sorted(devices.items())
        ],
        ignore_conflicts=True,
    )
