"""Deciding on dead letters, and telling the audit log why (OUTBOX.md, point 7)."""

from dataclasses import dataclass
from typing import Protocol

from adminui.seals import AuditRecord
from adminui.services.audit import audit_write
from adminui.services.policies import checked_reason
from config.kernel.database import durable_transaction
from outbox.services.dead import (
    Chosen,
    DeadLetter,
    dead_count,
    dead_discard,
    dead_letters,
    dead_requeue,
)

#: How many dead letters a preview shows.
SHOWN = 20


class OutboxRefused(Exception):  # noqa: N818 - the domain's word
    """Why nothing was done with dead letters, in words for the admin."""


@dataclass(frozen=True)
class Preview:
    """What would be done with how many, and the oldest of them."""

    events: int
    oldest: list[DeadLetter]


@dataclass(frozen=True)
class Decided:
    """How many events it was done with, and the audit entry that tells of it."""

    events: int
    audit: AuditRecord


class Decide(Protocol):
    """Requeue or discard."""

    def __call__(self, *, actor: str, reason: str, chosen: Chosen) -> Decided: ...


def outbox_preview(*, chosen: Chosen) -> Preview:
    """The dead letters that are chosen. Raises OutboxRefused when there is none."""
    events = dead_count(chosen=chosen)
    if not events:
        raise _none(chosen)
    return Preview(events, dead_letters(chosen=chosen, most=SHOWN))


def outbox_requeue(*, actor: str, reason: str, chosen: Chosen) -> Decided:
    """Give dead letters another life: due now, as if they had never failed.

    Raises OutboxRefused when there is none, and PolicyRefused without a reason.
    """
    reason = checked_reason(reason)
    with durable_transaction():
        events = dead_requeue(chosen=chosen)
        return _tell(actor, "outbox.requeue", reason, chosen, events)


def outbox_discard(*, actor: str, reason: str, chosen: Chosen) -> Decided:
    """Delete dead letters for good. Raises like `outbox_requeue`."""
    reason = checked_reason(reason)
    with durable_transaction():
        events = dead_discard(chosen=chosen)
        return _tell(actor, "outbox.discard", reason, chosen, events)


def _tell(actor: str, action: str, reason: str, chosen: Chosen, events: int) -> Decided:
    if not events:
        raise _none(chosen)
    target = f"topic {chosen.topic}" if chosen.event_id is None else f"event {chosen.event_id}"
    entry = audit_write(
        actor=actor, action=action, target=target, after={"events": events}, reason=reason
    )
    return Decided(events, entry)


def _none(chosen: Chosen) -> OutboxRefused:
    if chosen.event_id is None:
        return OutboxRefused(f"No event of the topic {chosen.topic} is dead.")
    return OutboxRefused(f"There is no dead event {chosen.event_id}.")
