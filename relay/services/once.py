"""One write, once: the one transaction of a request, and its idempotency key (DESIGN 4.1).

    claim the key → run the effect → complete the record → commit

A refusal found inside (unknown recipient, conflict, quota …) releases the key and commits: of
a refused request only what it wrote on purpose stays, such as the inline expiry of a full
queue. A crash or a failure of the storage rolls everything back.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings

from config.kernel import strict_json
from config.kernel.database import durable_transaction
from config.kernel.lines import Lines, patience
from config.kernel.problems import IdempotencyInProgress, Problem, StorageUnavailable
from config.kernel.shards import shard_of_device
from idempotency.fingerprints import scope_hash
from idempotency.services import Claim, Replay, claim, complete, release
from relay.callers import Caller

#: Who waits for which key and which queue, in this process (DESIGN rule 4.8).
LINES = Lines(seats=settings.RELAY_WEB_THREADS // 4)


@dataclass(frozen=True)
class Answer:
    """What a write answers: the status and the body's text, byte for byte."""

    status: int
    body: str = field(repr=False)
    replayed: bool = False


@dataclass(frozen=True)
class Effect:
    """What a write did: the status, the body's members, and when (the database's clock)."""

    status: int
    document: dict[str, Any] | None = field(repr=False)
    at: datetime


@dataclass(frozen=True)
class Request:
    """What makes a write the same write: caller, route, key and the fields' fingerprint."""

    caller: Caller
    route: str
    key: str | None = field(repr=False)
    fingerprint: bytes = field(repr=False)

    @property
    def scope_hash(self) -> bytes | None:
        """What stands for (caller, route, key); None without a key."""
        if self.key is None:
            return None
        return scope_hash(caller=self.caller.scope, route=self.route, key=self.key)


def run_once(request: Request, effect: Callable[[], Effect], *, queues: Sequence[UUID]) -> Answer:
    """Run `effect` in one transaction, under the request's key when it has one.

    `queues` are the devices whose rows the effect will lock. Raises the effect's own Problem, and
    IdempotencyKeyReused, IdempotencyInProgress or StorageUnavailable.
    """
    hashed = request.scope_hash
    refusal: Problem | None = None
    with in_line(hashed, queues), durable_transaction():
        owned = _claim(hashed, request.fingerprint)
        if isinstance(owned, Replay):
            return Answer(owned.status, owned.body, replayed=True)
        try:
            answer = _run(owned, effect)
        except Problem as problem:
            if problem.status >= 500:
                raise
            refusal = problem
            if owned is not None:
                release(claim=owned)
    if refusal is not None:
        raise refusal
    return answer


def _claim(hashed: bytes | None, fingerprint: bytes) -> Claim | Replay | None:
    return None if hashed is None else claim(scope_hash=hashed, fingerprint=fingerprint)


def _run(owned: Claim | None, effect: Callable[[], Effect]) -> Answer:
    done = effect()
    body = "" if done.document is None else strict_json.dumps(done.document)
    if owned is not None and done.status >= 400:
        release(claim=owned)  # refused with a body of its own: the key stays free
    elif owned is not None:
        complete(claim=owned, status=done.status, body=body, now=done.at)
    return Answer(done.status, body)


@contextmanager
def in_line(hashed: bytes | None, queues: Sequence[UUID]) -> Iterator[None]:
    """Seats in the lines of the key and the queues, in the order in which rows are locked."""
    until = patience()
    with ExitStack() as seats:
        if hashed is not None:
            seats.enter_context(LINES.place(hashed, IdempotencyInProgress, until=until))
        for queue in sorted(set(queues), key=lambda queue: (shard_of_device(queue), queue)):
            seats.enter_context(LINES.place(queue, StorageUnavailable, until=until))
        yield
