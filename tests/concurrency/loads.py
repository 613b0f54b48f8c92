"""Load as clients make it: retries with the same key, and a journal of what was answered."""

import time
from typing import Any
from uuid import UUID, uuid4

import httpx

from config.kernel.database import durable_transaction
from quotas.services import limits_write_version
from relay.services.sweeping import Pace, SweepReport, sweep_all
from tests.client import Party, RelayClient, new_key
from tests.concurrency.oracle import Journal

#: Answers after which the same key is to be tried again.
_AGAIN = frozenset({"STORAGE_UNAVAILABLE", "IDEMPOTENCY_IN_PROGRESS"})
_PATIENCE = 30


def set_limits(**changes: Any) -> None:
    """A new version of the limits, in force at once in a relay that believes nothing."""
    with durable_transaction():
        limits_write_version(**changes)


def code_of(answer: httpx.Response) -> str:
    """The problem's code, or nothing."""
    return str(answer.json().get("code", "")) if answer.status_code >= 400 else ""


def submit_surely(
    relay: RelayClient,
    sender: Party,
    recipient: Party,
    ciphertext: bytes = b"ciphertext",
    *,
    message_id: UUID | None = None,
    key: str | None = None,
    journal: Journal | None = None,
    **members: Any,
) -> httpx.Response:
    """Submit, and retry with the same key while the answer is open; the last answer."""
    message_id, key = message_id or uuid4(), key or new_key()
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            answer = relay.submit(
                sender, recipient, ciphertext, message_id=message_id, key=key, **members
            )
        except httpx.TransportError:
            answer = None
        if answer is not None and code_of(answer) not in _AGAIN:
            break
        assert time.monotonic() < deadline, "no final answer came"
        time.sleep(0.02)
    if journal is not None:
        accepted = answer.text if answer.status_code == 201 else None
        journal.add(recipient.id, message_id, key, accepted)
    return answer


def acknowledge_surely(
    relay: RelayClient, device: Party, message_ids: list[Any]
) -> list[dict[str, str]]:
    """Acknowledge, and again while the storage is not available; the results."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        answer = relay.acknowledge(device, message_ids)
        if code_of(answer) not in _AGAIN:
            assert answer.status_code == 200, answer.text
            return list(answer.json()["results"])
        assert time.monotonic() < deadline, "no final answer came"
        time.sleep(0.02)


def sweep() -> list[SweepReport]:
    """Every sweep once, unpaced, in this process."""
    pace = Pace(batch=500, rows_per_second=1_000_000, pause_seconds=0)
    return sweep_all(pace=pace, stop=lambda: False, most_seconds=60)
