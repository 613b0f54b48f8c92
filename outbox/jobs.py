"""RQ's entry points: thin shells over services."""

from typing import Any

from outbox.entries import entry
from outbox.services.batches import Delivery
from outbox.services.handling import handle

#: How a job names the one below.
HANDLE_BATCH = "outbox.jobs.handle_batch"


@entry
def handle_batch(payload: dict[str, Any]) -> None:
    """One batch of events."""
    handle(Delivery.from_payload(payload))
