"""The outbox's handler for security events: each becomes an entry of the audit log.

They come from below, which knows of no audit log: coalesced per queue and hour, and unique by
their event id, so that one that is delivered twice is told once.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from adminui.services.audit import audit_write
from config.kernel import clock, pseudonyms
from config.kernel.database import durable_transaction
from outbox.topics import DONE, EventRef, Settlement

ACTOR = "relay"


def handle(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
    """Write an entry for each event, in the order in which things happened."""
    said: dict[UUID, Settlement] = {}
    for event in sorted(events, key=lambda event: event.created_at):
        with durable_transaction():
            audit_write(
                actor=ACTOR,
                action=f"security.{event.kind}",
                target=pseudonyms.lasting("device", event.device_id.bytes),
                after={"happened_at": clock.rfc3339(event.created_at)},
                event_id=event.event_id,
            )
        said[event.event_id] = DONE
    return said
