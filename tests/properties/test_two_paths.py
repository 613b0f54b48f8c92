"""The fast path of a submit and the reference path: the same history, the same answers and rows.

Each history runs twice on empty tables under a clock that the test sets: once with the fast
path, once with it taken away. What is random about a row (attempts, event ids) is left out.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.kernel.database import durable_transaction
from config.kernel.problems import Problem
from config.kernel.shards import shard_of_device
from quotas import usage as queue
from quotas.models import QueueUsage
from relay.callers import Caller, CallerKind
from relay.services import submit as path
from relay.services.acknowledge import acknowledge
from relay.services.submissions import Rules, Submission
from tests.api.helpers import query
from tests.conftest import DatabaseClock
from tests.properties.profiles import examples, fuse

_NAMES = UUID("0d5ad0a4-6f0c-4b5f-8a77-6b1f0d7b8d0e")
START = datetime(2031, 5, 1, 12, 0, tzinfo=UTC)
SENDERS = [Caller(CallerKind.DEVICE, uuid5(_NAMES, f"sender {n}")) for n in range(2)]
QUEUES = [uuid5(_NAMES, f"queue {n}") for n in range(2)]
NOBODY = uuid5(_NAMES, "nobody")
MESSAGES = [uuid5(_NAMES, f"message {n}") for n in range(8)]

#: What every row holds but for what is random about it.
ROWS = {
    "idempotency_record": "shard, scope_hash, fingerprint, status, body, expires_at",
    "quotas_queueusage": "*",
    "relay_envelope": "*",
    "relay_body": "*",
    "outbox_event": (
        "shard, schema_version, topic, kind, device_id, state, deliveries, failures, starts, "
        "next_at, last_error, created_at"
    ),
}


@dataclass(frozen=True)
class World:
    """Where a history runs: its clock's time, and the clock."""

    clock: DatabaseClock
    now: list[datetime]

    def move(self, delta: timedelta) -> None:
        self.now[0] += delta
        self.clock.freeze(self.now[0].isoformat())


Step = Callable[[World], str]


def _said(act: Callable[[], Any]) -> str:
    """The answer as text, or the refusal."""
    try:
        answer = act()
    except Problem as problem:
        return problem.code  # how long to wait is drawn by lot
    return f"{answer.status} {answer.body} {answer.replayed}"


@st.composite
def _submits(draw: st.DrawFn) -> Step:
    sender = draw(st.sampled_from(SENDERS))
    key = draw(st.sampled_from([f"key {n}" for n in range(12)]))
    submission = Submission(
        recipient_device_id=draw(st.sampled_from([*QUEUES, *QUEUES, *QUEUES, NOBODY])),
        message_id=draw(st.sampled_from(MESSAGES)),
        protocol_version=draw(st.sampled_from([1, 1, 1, 1, 1, 2])),
        ciphertext=draw(st.sampled_from([b"a" * 10, b"a" * 10, b"b" * 10, b"c" * 70, b"d" * 91])),
        ttl_seconds=draw(st.sampled_from([None, None, 0, 60, 3_600, 10**9])),
    )
    return lambda world: _said(lambda: path.submit(caller=sender, key=key, submission=submission))


@st.composite
def _acknowledgements(draw: st.DrawFn) -> Step:
    device, ids = (
        draw(st.sampled_from(QUEUES)),
        draw(st.lists(st.sampled_from(MESSAGES), max_size=3)),
    )
    caller = Caller(CallerKind.DEVICE, device)
    return lambda world: _said(lambda: acknowledge(caller=caller, key=None, message_ids=ids))


@st.composite
def _moves(draw: st.DrawFn) -> Step:
    microseconds = draw(st.sampled_from([1, 59_999_999, 60_000_000, 90_000 * 10**6, -5_000_000]))

    def move(world: World) -> str:
        world.move(timedelta(microseconds=microseconds))
        return ""

    return move


@st.composite
def _closings(draw: st.DrawFn) -> Step:
    device = draw(st.sampled_from(QUEUES))

    def close(world: World) -> str:
        with durable_transaction():
            usage = queue.usage_lock(shard=shard_of_device(device), device_id=device)
            assert usage is not None
            queue.close(usage=usage, now=world.now[0])
        return ""

    return close


#: Drawn in two steps, so that submits are the many.
STEPS = st.sampled_from([*[_submits()] * 8, _moves(), _acknowledgements(), _closings()]).flatmap(
    lambda steps: steps
)
HISTORIES = st.lists(STEPS, min_size=10, max_size=40)


def _run(history: list[Step], clock: DatabaseClock) -> tuple[list[str], dict[str, list[Any]]]:
    for table in ROWS:
        query(f"DELETE FROM {table}")
    QueueUsage.objects.bulk_create(
        QueueUsage(shard=shard_of_device(each), device_id=each) for each in QUEUES
    )
    world = World(clock, [START])
    world.move(timedelta())
    answers = [step(world) for step in history]
    return answers, {
        table: sorted(map(repr, query(f"SELECT {columns} FROM {table}")))
        for table, columns in ROWS.items()
    }


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[bool]]:
    """How often the fast path took a submit; `monkeypatch` may take it away."""
    taken: Counter[bool] = Counter()
    real = path.submit_at_once

    def counted(**arguments: Any) -> str | None:
        body = real(**arguments)
        taken[body is not None] += 1
        return body

    monkeypatch.setattr(path, "submit_at_once", counted)
    return taken


@fuse
def test_both_paths_write_one_history(
    clock: DatabaseClock, fast: Counter[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = Rules.current()
    small = Rules(
        limits=replace(rules.limits, pending_count=3, pending_bytes=90),
        retention=replace(rules.retention, receipt_days=2),  # so that either end may be later
    )
    monkeypatch.setattr(Rules, "current", lambda: small)

    @examples(40)
    @given(HISTORIES)
    def run(history: list[Step]) -> None:
        by_fast = _run(history, clock)
        with monkeypatch.context() as without:
            without.setattr(path, "submit_at_once", lambda **_: None)
            by_reference = _run(history, clock)
        assert by_fast == by_reference

    run()
    assert min(fast[True], fast[False]) > 80  # or the histories are too dull
