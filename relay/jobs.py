"""RQ's entry points: thin shells over services."""

from typing import Any

from outbox.entries import entry
from relay.services.sweeping import sweep_slice

#: How a job names the one below.
SWEEP = "relay.jobs.sweep"


@entry
def sweep(payload: dict[str, Any]) -> None:
    """A slice of one sweep."""
    sweep_slice(name=str(payload["sweep"]))
