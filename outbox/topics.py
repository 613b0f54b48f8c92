"""Topics of the outbox, registered by the apps above: the outbox knows none of them.

A topic names the queue that its batches travel on and the handler that carries them out. The
handler runs outside any transaction and says of each event what became of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

#: The queues that there are; a worker serves exactly one (ADR 0002).
QUEUES = ("wake", "maintenance")


class Disposition(StrEnum):
    """What is to be done with an event that a handler has seen."""

    DONE = "done"  # carried out, or nothing to do any more: delete it
    FAILED = "failed"  # counts as a failure: again after a backoff, dead after eight
    LATER = "later"  # no failure: again after a while


@dataclass(frozen=True)
class Settlement:
    """A handler's word on one event. `code` is a constant of ours, never an error's text."""

    disposition: Disposition
    code: str = ""
    after_seconds: float | None = None


DONE = Settlement(Disposition.DONE)


@dataclass(frozen=True)
class EventRef:
    """An event as its handler sees it."""

    shard: int
    event_id: UUID
    device_id: UUID
    kind: str
    schema_version: int
    failures: int
    created_at: datetime


#: Carries out the events of one batch. What it does not mention counts as LATER. It must be
#: back before `seconds` are over; what it had no time for, it leaves out.
Handler = Callable[[Sequence[EventRef], float], Mapping[UUID, Settlement]]


@dataclass(frozen=True)
class Topic:
    """A kind of event: where it travels, who carries it out, which versions that one knows."""

    name: str
    queue: str
    handler: Handler
    schema_versions: frozenset[int] = frozenset({1})


_TOPICS: dict[str, Topic] = {}


def register(topic: Topic) -> None:
    """Make a topic known; at start, once."""
    if topic.queue not in QUEUES:
        raise ValueError(f"there is no queue {topic.queue} for the topic {topic.name}")
    if _TOPICS.setdefault(topic.name, topic) != topic:
        raise ValueError(f"the topic {topic.name} is registered twice")


def find(name: str) -> Topic | None:
    """The topic of that name, or None: an event of a newer version of the relay, perhaps."""
    return _TOPICS.get(name)


def known() -> list[Topic]:
    """Every topic that this process can name."""
    return sorted(_TOPICS.values(), key=lambda topic: topic.name)
