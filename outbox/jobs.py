"""RQ's entry points: thin shells over services."""

from typing import Any

from outbox.services.batches import ClaimedBatch
from outbox.services.handling import handle


def handle_batch(payload: dict[str, Any]) -> None:
    """One batch of events."""
    handle(ClaimedBatch.from_payload(payload))
