"""The outbox's handler for wakes (OUTBOX.md, points 5 to 7).

    who came again is struck out → devices, each once → whom it is of use to, in one read
    → calls, in a bounded pool → dead registrations dropped → one settlement an event

Of a device's events one speaks for all: it gets the verdict, the others are done with it. So
neither a burst of mail nor a broken endpoint leaves more than one event behind. It is the one
that failed least, so that new mail starts afresh and is not buried with an old failure.

No network call happens inside a transaction, and no thread but the caller's touches the
database.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from config.kernel import clock, logs
from config.kernel.database import assert_no_transaction
from outbox.topics import Disposition, EventRef, Settlement
from relay.selectors.retention import current_retention
from relay.selectors.wakes import wake_targets
from relay.services.wakes import wake_drop
from relay.wakes import verdicts, wiring
from relay.wakes.codes import Code
from relay.wakes.recent import RedisAwayError
from relay.wakes.scheduling import Task, run_all
from relay.wakes.senders import Outcome, Sender
from relay.wakes.verdicts import Verdict
from relay.wakes.wiring import Parts

#: Seconds to settle the batch in, of those that the caller gave.
_MARGIN = 0.25
#: Seconds until a batch comes again that Redis was not there for.
REDIS_AWAY_WAIT = 1.0
_COALESCED = Settlement(Disposition.DONE, Code.COALESCED)

HANDLED = logs.event("wake.handled", "code", "devices", level=logging.DEBUG)
NOT_SENT = logs.event("wake.not_sent", "code", "devices", level=logging.WARNING)


def handle(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
    """Wake the devices of a batch; back before `seconds` are over."""
    until = time.monotonic() + seconds - _MARGIN
    assert_no_transaction()
    if not events:
        return {}
    speakers = _speakers(events)
    parts = wiring.parts()
    try:  # before anything is read about the devices: see relay.wakes.recent
        parts.recent.strike_out((event.device_id, event.event_id) for event in events)
        found = _wake(speakers, parts=parts, until=until)
    except RedisAwayError:
        found = dict.fromkeys(speakers, verdicts.later(Code.REDIS_AWAY, REDIS_AWAY_WAIT))
    _report(found.values())
    settlements = {event.event_id: _COALESCED for event in events}
    for device_id, speaker in speakers.items():
        del settlements[speaker.event_id]
        if device_id in found:
            settlements[speaker.event_id] = found[device_id].settlement
    return settlements


def _speakers(events: Iterable[EventRef]) -> dict[UUID, EventRef]:
    """The event that speaks for each device."""
    by_device: dict[UUID, list[EventRef]] = defaultdict(list)
    for event in events:
        by_device[event.device_id].append(event)
    return {device_id: min(same, key=_order) for device_id, same in by_device.items()}


def _order(event: EventRef) -> tuple[int, float]:
    """The one that failed least, and of those the newest."""
    return event.failures, -event.created_at.timestamp()


def _wake(speakers: Mapping[UUID, EventRef], *, parts: Parts, until: float) -> dict[UUID, Verdict]:
    """What became of each device's wake; those that there was no time for are left out."""
    started, now = time.monotonic(), clock.read()
    ttl = current_retention().ttl_seconds
    sender = Sender(parts=parts, now=now, read_at=started, ttl_seconds=ttl, end_before=until)
    found = dict.fromkeys(speakers, verdicts.done(Code.NOT_NEEDED))
    tasks: list[Task[Outcome]] = []
    for target in wake_targets(device_ids=speakers, now=now):
        task = sender.task(target, speakers[target.device_id].event_id)
        if isinstance(task, Verdict):
            found[target.device_id] = task
        else:
            del found[target.device_id]
            tasks.append(task)
    start_before = min(until, started + parts.batch_seconds)
    ended = run_all(tasks, threads=parts.threads, start_before=start_before, end_before=until)
    for outcome in ended:
        if outcome.verdict is None:
            continue
        found[outcome.target.device_id] = outcome.verdict
        if outcome.verdict.is_gone:
            wake_drop(device_id=outcome.target.device_id, sealed=outcome.target.sealed)
    return found


def _report(found: Iterable[Verdict]) -> None:
    """A line for each code, in counts: never whose, never where."""
    counts = Counter(verdict.settlement for verdict in found)
    for settlement, devices in counts.items():
        is_trouble = settlement.disposition is Disposition.FAILED
        is_trouble = is_trouble or settlement.code == Code.NO_GATEWAY
        (NOT_SENT if is_trouble else HANDLED)(code=settlement.code, devices=devices)
