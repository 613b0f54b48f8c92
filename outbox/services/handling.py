"""Handling one batch in a worker: start, effects, settle (OUTBOX.md, "Handled").

Killed anywhere in here, the batch is repeated when its lease ends: before the start as if
nothing had been, after it with every event alone, as one of them may be the reason.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection

from config.kernel import clock, failpoints, logs, sql
from config.kernel.database import assert_no_transaction
from outbox import topics
from outbox.models import EventState
from outbox.services.batches import Delivery, topic_of
from outbox.services.settling import (
    UNKNOWN_WAIT,
    Settled,
    claim_undo,
    leave_for_newer,
    settle,
)
from outbox.topics import Disposition, EventRef, Settlement, Topic
from outbox.transactions import forgettable_transaction

#: Seconds that a handler has for one batch; what is left of it goes back without a failure.
HANDLER_SECONDS = 20.0
#: A job this close to the end of its lease exits: it could still be at work when somebody else
#: claims its events. A job takes 30 s at most (outbox.publishing), and then settles.
LEASE_MARGIN = timedelta(seconds=32)
#: An event dies when so many starts were not followed by an end.
STARTS_MOST = 5

_START = Path(__file__).parent.parent / "sql" / "start.sql"

HANDLED = logs.event("outbox.handled", "topic", "done", "failed", "later", level=logging.DEBUG)
RAISED = logs.event("outbox.handler_raised", "topic", "events", "error", level=logging.ERROR)
TOO_LATE = logs.event("outbox.too_late", "events", level=logging.WARNING)
UNKNOWN_TOPIC = logs.event("outbox.unknown_topic", "topic", "events", level=logging.WARNING)
DIED = logs.event("outbox.died", "topic", "events", "code", level=logging.ERROR)


def handle(delivery: Delivery) -> Settled | None:
    """Carry out a batch; None when it is no longer ours, or nobody here knows what to do."""
    assert_no_transaction()
    failpoints.hit("worker.popped")
    if clock.read() + LEASE_MARGIN > delivery.lease_end:
        TOO_LATE(events=delivery.count)
        return None
    name = topic_of(delivery)
    if name is None:
        return None
    topic = topics.find(name)
    if topic is None:
        UNKNOWN_TOPIC(topic=name, events=delivery.count)
        claim_undo(delivery, after=UNKNOWN_WAIT, code="UNKNOWN_TOPIC")
        return None
    events = _start(delivery, topic)
    failpoints.hit("worker.started")
    said, raised = _carry_out(topic, events)
    failpoints.hit("worker.effect")
    settled = settle(delivery, events, said, raised=raised)
    failpoints.hit("worker.settled")
    _report(topic, settled)
    return settled


def _start(delivery: Delivery, topic: Topic) -> list[EventRef]:
    """Stamp the starts of what is still ours; put back what only a newer relay understands."""
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    with forgettable_transaction():
        for shard in sorted(delivery.events):
            parameters = {
                "shard": shard,
                "event_ids": list(delivery.events[shard]),
                "lease_end": delivery.lease_end,
                "schema_versions": sorted(topic.schema_versions),
                "starts_most": STARTS_MOST,
            }
            rows[shard] = sql.rows(sql.load(_START), parameters)
    found = sum(map(len, rows.values()))
    if found < delivery.count:
        leave_for_newer(delivery, known_versions=topic.schema_versions)
    dead = sum(row["state"] == EventState.DEAD for each in rows.values() for row in each)
    if dead:
        DIED(topic=topic.name, events=dead, code="NO_END")
    return [
        _reference(shard, row)
        for shard in delivery.events  # the one with the oldest due event first
        for row in sorted(rows[shard], key=lambda row: row["created_at"])
        if row["state"] != EventState.DEAD
    ]


def _reference(shard: int, row: Mapping[str, Any]) -> EventRef:
    return EventRef(
        shard=shard,
        event_id=row["event_id"],
        device_id=row["device_id"],
        kind=row["kind"],
        schema_version=row["schema_version"],
        failures=row["failures"],
        created_at=row["created_at"],
    )


def _carry_out(topic: Topic, events: Sequence[EventRef]) -> tuple[Mapping[UUID, Settlement], bool]:
    """The handler's words, and whether it raised: then all that it was given has failed."""
    if not events:
        return {}, False
    try:
        return dict(topic.handler(events, HANDLER_SECONDS)), False
    except Exception as error:
        RAISED(topic=topic.name, events=len(events), error=logs.where(error))
        # It may have been interrupted in the middle of a statement, by the job's time limit.
        connection.close()
        failed = Settlement(Disposition.FAILED, code=type(error).__name__)
        return {event.event_id: failed for event in events}, True


def _report(topic: Topic, settled: Settled) -> None:
    if settled.dead:
        DIED(topic=topic.name, events=settled.dead, code="FAILURES")
    HANDLED(topic=topic.name, done=settled.done, failed=settled.failed, later=settled.later)
