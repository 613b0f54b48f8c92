"""Handling one batch in a worker: start, effects, settle (OUTBOX.md, "Handled")."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from config.kernel import clock, logs
from config.kernel.database import assert_no_transaction
from outbox import topics
from outbox.models import Event, EventState
from outbox.services import settling
from outbox.services.batches import ClaimedBatch
from outbox.services.claiming import UNKNOWN_WAIT
from outbox.topics import Disposition, EventRef, Settlement, Topic

#: Seconds that a handler has for one batch; what is left of it goes back without a failure.
HANDLER_SECONDS = 20.0
#: A job this close to the end of its lease exits: somebody else may claim its events any time.
_LEASE_MARGIN = timedelta(seconds=25)

HANDLED = logs.event(
    "outbox.handled", "topic", "done", "failed", "later", "dead", level=logging.DEBUG
)
RAISED = logs.event("outbox.handler_raised", "topic", "error", level=logging.ERROR)
TOO_LATE = logs.event("outbox.too_late", "topic", "count", level=logging.WARNING)


def handle(batch: ClaimedBatch) -> settling.Settled | None:
    """Carry out a batch; None when its lease is over, or nobody here knows what to do."""
    assert_no_transaction()
    if clock.read() + _LEASE_MARGIN > batch.lease_end:
        TOO_LATE(topic=batch.topic, count=batch.count)
        return None
    topic = topics.find(batch.topic)
    if topic is None:
        settling.put_back(batch, after=UNKNOWN_WAIT)
        return None
    settling.bury_endless(batch)
    events = _read(batch)
    known = [event for event in events if event.schema_version in topic.schema_versions]
    settling.start(batch)
    said = dict(_carry_out(topic, known))
    for event in events:
        if event.schema_version not in topic.schema_versions:
            said[event.event_id] = _unknown_version()
    settled = settling.settle(batch, said)
    HANDLED(
        topic=batch.topic,
        done=settled.done,
        failed=settled.failed,
        later=settled.later,
        dead=settled.dead,
    )
    return settled


def _carry_out(topic: Topic, events: list[EventRef]) -> Mapping[UUID, Settlement]:
    """The handler's words; one that raises fails what it was given."""
    if not events:
        return {}
    try:
        return topic.handler(events, HANDLER_SECONDS)
    except Exception as error:
        RAISED(topic=topic.name, error=logs.where(error))
        failed = Settlement(Disposition.FAILED, code=type(error).__name__[:64])
        return {event.event_id: failed for event in events}


def _unknown_version() -> Settlement:
    return Settlement(
        Disposition.LATER, code="UNKNOWN_VERSION", after_seconds=UNKNOWN_WAIT.total_seconds()
    )


def _read(batch: ClaimedBatch) -> list[EventRef]:
    """The events that are still ours: others were settled by an earlier delivery."""
    refs: list[EventRef] = []
    for shard, event_ids in batch.events.items():
        rows = Event.objects.filter(
            shard=shard, event_id__in=list(event_ids), state=EventState.PUBLISHED
        )
        refs += [
            EventRef(
                shard=row.shard,
                event_id=row.event_id,
                device_id=row.device_id,
                kind=row.kind,
                schema_version=row.schema_version,
                failures=row.failures,
                created_at=row.created_at,
            )
            for row in rows.order_by("event_id")
        ]
    return refs
