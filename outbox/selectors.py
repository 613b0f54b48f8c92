"""What operators ask of the outbox. `status` counts every event: for people, not for scrapes."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, Min, Q

from config.kernel import clock
from outbox import heartbeats, topics
from outbox.models import Event, EventState, Heartbeat
from outbox.services.claiming import due_places
from outbox.services.pressure import Flow, recent_flow


@dataclass(frozen=True)
class TopicDepth:
    """The events of a topic, and its batches of the last minute."""

    topic: str
    handled_here: bool  # a handler is registered; else they wait for a newer relay
    due: int
    waiting: int  # for the end of a backoff
    published: int
    dead: int
    oldest_due_seconds: float
    batched: int  # events in batches that are under way
    finished: int  # events in batches that were finished within the last minute


@dataclass(frozen=True)
class Reason:
    """Why events of a topic are not done: what was said of them last."""

    topic: str
    dead: bool  # else they come again
    code: str
    events: int
    oldest_created_at: datetime


@dataclass(frozen=True)
class ProcessHealth:
    """The processes of one name."""

    name: str
    alive: int
    last_beat_seconds: float | None


@dataclass(frozen=True)
class OutboxStatus:
    """How the outbox does."""

    topics: list[TopicDepth]
    reasons: list[Reason]
    processes: list[ProcessHealth]


def outbox_status() -> OutboxStatus:
    """Depth by topic and state over all shards, the oldest due event, and who is alive."""
    now = clock.read()
    return OutboxStatus(_depths(now), _reasons(), _processes(now))


def _depths(now: datetime) -> list[TopicDepth]:
    # Published and due is an event whose lease ended: it waits like any other.
    is_due = Q(next_at__lte=now) & ~Q(state=EventState.DEAD)
    later = Q(next_at__gt=now)
    rows = Event.objects.values("topic").annotate(
        due=Count("event_id", filter=is_due),
        waiting=Count("event_id", filter=later & Q(state=EventState.PENDING)),
        published=Count("event_id", filter=later & Q(state=EventState.PUBLISHED)),
        dead=Count("event_id", filter=Q(state=EventState.DEAD)),
        oldest=Min("next_at", filter=is_due),
    )
    counts = {row["topic"]: row for row in rows}
    flows = recent_flow(now=now)
    known = {topic.name for topic in topics.known()}
    found = []
    for name in sorted(known | set(counts) | set(flows)):
        row, flow = counts.get(name), flows.get(name, Flow())
        found.append(
            TopicDepth(
                topic=name,
                handled_here=name in known,
                due=row["due"] if row else 0,
                waiting=row["waiting"] if row else 0,
                published=row["published"] if row else 0,
                dead=row["dead"] if row else 0,
                oldest_due_seconds=_age(now, row["oldest"] if row else None),
                batched=flow.under_way,
                finished=flow.finished,
            )
        )
    return found


def _reasons() -> list[Reason]:
    with_code = Event.objects.exclude(last_error="").exclude(state=EventState.PUBLISHED)
    rows = with_code.values("topic", "state", "last_error").annotate(
        events=Count("event_id"), oldest=Min("created_at")
    )
    return [
        Reason(
            topic=row["topic"],
            dead=row["state"] == EventState.DEAD,
            code=row["last_error"],
            events=row["events"],
            oldest_created_at=row["oldest"],
        )
        for row in rows.order_by("topic", "state", "last_error")
    ]


def _processes(now: datetime) -> list[ProcessHealth]:
    rows = Heartbeat.objects.values("name").annotate(last=Max("beat_at"))
    last = {row["name"]: row["last"] for row in rows}
    return [
        ProcessHealth(
            name=name,
            alive=heartbeats.alive(name=name),
            last_beat_seconds=_age(now, last[name]) if name in last else None,
        )
        for name in heartbeats.PROCESSES
    ]


def oldest_due_seconds(*, now: datetime) -> dict[str, float]:
    """How long the oldest due event of each known topic has been due; follows the index."""
    names = [topic.name for topic in topics.known()]
    oldest = dict.fromkeys(names, 0.0)
    for place in due_places(topics=names, now=now):
        oldest[place.topic] = max(oldest[place.topic], _age(now, place.next_at))
    return oldest


def dead_by_topic() -> dict[str, int]:
    """Dead letters by topic; follows the index of the dead."""
    dead = Event.objects.filter(state=EventState.DEAD).values("topic").annotate(n=Count("event_id"))
    return {row["topic"]: row["n"] for row in dead}


def _age(now: datetime, moment: datetime | None) -> float:
    return 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
