"""Back-pressure: how much may be claimed (OUTBOX.md, point 4).

What is claimed faster than it is handled waits in a queue until its lease ends there, and is
done twice. So of each topic no more is under way than its workers finish in a third of a
minute, by what they finished in the last one: counted in events, as batches differ. Each topic
has a measure of its own, or one that is stuck would block the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from config.kernel import clock, sql
from outbox import heartbeats
from outbox.services.claiming import BATCH_MOST, LEASE
from outbox.topics import Topic

#: Events that each live worker may have before it whatever it finished lately: one batch under
#: its hands and one waiting.
LEAST_PER_WORKER = 2 * BATCH_MOST
#: The part of the last minute's work that may be under way.
_SHARE = 3

_RECENT = """
SELECT topic,
       COALESCE(sum(count) FILTER (WHERE done_at IS NULL), 0) AS under_way,
       COALESCE(sum(count) FILTER (WHERE done_at IS NOT NULL), 0) AS finished
  FROM outbox_batch
 WHERE claimed_at > %(since)s
 GROUP BY topic
"""


@dataclass(frozen=True)
class Flow:
    """Events of a topic claimed within the last minute."""

    under_way: int = 0
    finished: int = 0


def recent_flow(*, now: datetime) -> dict[str, Flow]:
    """What is under way, and what was finished, by topic."""
    rows = sql.rows(_RECENT, {"since": now - LEASE})
    return {row["topic"]: Flow(int(row["under_way"]), int(row["finished"])) for row in rows}


def room(*, topics: Iterable[Topic]) -> dict[Topic, int]:
    """How many more events of each topic may be claimed now; none below zero."""
    flows = recent_flow(now=clock.read())
    found: dict[Topic, int] = {}
    for topic in topics:
        flow = flows.get(topic.name, Flow())
        # With nobody there to work, as much as one worker needs that is just starting.
        workers = max(1, heartbeats.alive(name=heartbeats.worker(topic.queue)))
        most = max(LEAST_PER_WORKER * workers, flow.finished // _SHARE)
        found[topic] = max(0, most - flow.under_way)
    return found
