"""The web process is killed in every gap between two statements of a submit (FAULTS 1).

Every gap is found by a copy of this process that serves the one request and kills itself
before its n-th statement, for every n there is. That it is the same with granian is shown at
the gaps that matter, by the proxy on the way to PostgreSQL: a single submit is one statement
that commits itself, a batch a transaction.
"""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from django.db import connection

from config.trial.processes import signal_group
from idempotency.models import Record
from outbox.models import Event
from relay.models import Envelope
from tests.client import Party, RelayClient, base64_of, make_device, new_key
from tests.concurrency.inside import InsideClient
from tests.concurrency.oracle import Journal, assert_sound
from tests.faults.world import WEB, World
from tests.outbox.kit import Forked, Processes, wait_until

KILLED = -signal.SIGKILL
#: More gaps than any of these writes has.
MANY = 60


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Fuse:
    """Kills this process in the n-th gap: before a statement, before or after a COMMIT.

    A statement outside a transaction is its own COMMIT.
    """

    def __init__(self, gap: int) -> None:
        self._left = gap

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self.burn()
        result = execute(sql, params, many, context)
        if not connection.in_atomic_block:
            self.burn()
        return result

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            _die()

    def around(self, commit: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            self.burn()
            commit()
            self.burn()

        return run


@dataclass
class Write:
    """A write with its key, to be tried by whichever relay; `envelopes` are what it makes."""

    sender: Party = field(default_factory=make_device)
    recipients: list[Party] = field(default_factory=lambda: [make_device()])
    key: str = field(default_factory=new_key)
    message_ids: list[UUID] = field(default_factory=list)
    path: str = "/v1/envelopes"

    def __post_init__(self) -> None:
        self.message_ids = [uuid4() for _ in self.recipients]

    def send(self, relay: RelayClient) -> httpx.Response:
        entries = [
            {
                "recipient_device_id": str(recipient.id),
                "message_id": str(message_id),
                "protocol_version": 1,
                "ciphertext": base64_of(message_id.bytes),
            }
            for recipient, message_id in zip(self.recipients, self.message_ids, strict=True)
        ]
        body = entries[0] if self.path == "/v1/envelopes" else {"envelopes": entries}
        headers = {"Idempotency-Key": self.key}
        return relay.call("POST", self.path, self.sender, json=body, headers=headers)

    def stored(self) -> int:
        """How many of its envelopes are there."""
        return Envelope.objects.filter(message_id__in=self.message_ids).count()


def _single() -> Write:
    return Write()


def _batch() -> Write:
    """To one queue: the number of statements depends on the recipients' shards."""
    return Write(recipients=[make_device()] * 3, path="/v1/envelopes/batch")


def _serve_and_die(write: Write, gap: int) -> None:
    """In the copy: the request, with a fuse."""
    fuse = _Fuse(gap)
    connection.ensure_connection()
    connection._commit = fuse.around(connection._commit)  # type: ignore[method-assign]
    with connection.execute_wrapper(fuse), InsideClient() as inside:
        write.send(inside)


@pytest.mark.parametrize(
    ("made", "way", "needle", "stored"),
    [
        (_single, "on_request", b"", 0),
        (_single, "on_answer", b'"accepted_at"', 1),
        (_batch, "on_request", b'INSERT INTO "relay_body"', 0),
        (_batch, "on_request", b"COMMIT", 0),
        (_batch, "on_answer", b"COMMIT\x00", 1),
    ],
    ids=[
        *("before the one statement", "after the one statement"),
        *("before a statement", "before the commit", "after the commit"),
    ],
)
def test_a_granian_killed_on_the_way_to_the_commit_is_resolved_by_the_key(
    world: World, made: Callable[[], Write], way: str, needle: bytes, stored: int
) -> None:
    write, died = made(), []
    needle = needle or write.message_ids[0].bytes  # its parameters

    def kill_at(data: bytes) -> bool:
        if died or needle not in data:
            return False
        died.append(True)
        signal_group(world.process(WEB), signal.SIGKILL)
        return True

    setattr(world.to_postgres, way, kill_at)
    with world.client() as relay:
        with pytest.raises(httpx.TransportError):
            write.send(relay)
        assert died
        world.to_postgres.heal()
        wait_until(_nobody_is_in_a_transaction, 10, "PostgreSQL to notice")
        assert write.stored() == stored * len(write.message_ids)
        assert Record.objects.count() == stored
        world.kill(WEB)
        world.start(WEB)
        answer = write.send(relay)
    assert answer.status_code == (201 if made is _single else 200)
    assert (answer.headers.get("Idempotency-Replayed") == "true") is bool(stored)
    journal = Journal()
    journal.add(write.recipients[0].id, write.message_ids[0], write.key, answer.text)
    assert_sound(journal if made is _single else None)


@pytest.mark.parametrize(("made", "accepted"), [(_single, 201), (_batch, 200)])
def test_a_web_process_killed_in_any_gap_leaves_all_or_nothing_and_the_key_resolves_it(
    world: World, processes: Processes, made: Callable[[], Write], accepted: int
) -> None:
    world.start(WEB)
    journal, outcomes = Journal(), []
    with world.client() as relay:
        for gap in range(1, MANY):
            write = made()
            died = _killed_in(processes, write, gap)
            stored = write.stored()
            assert stored in (0, len(write.message_ids))
            assert Event.objects.filter(device_id=write.recipients[0].id).count() == bool(stored)
            answer = write.send(relay)  # the client comes again, to another process
            assert answer.status_code == accepted, answer.text
            replayed = answer.headers.get("Idempotency-Replayed") == "true"
            assert replayed is bool(stored)
            assert write.stored() == len(write.message_ids)
            for recipient, message_id in zip(write.recipients, write.message_ids, strict=True):
                journal.add(recipient.id, message_id, write.key, str(message_id))
            if not died:
                break
            outcomes.append(bool(stored))
    # Nothing is there until the last gap, which is the one between the COMMIT and the answer.
    assert outcomes[-1] is True
    assert not any(outcomes[:-1])
    assert len(outcomes) >= 3
    assert_sound(journal)


def _killed_in(processes: Processes, write: Write, gap: int) -> bool:
    """Whether there is such a gap; then the process died in it, and PostgreSQL noticed."""
    process: Forked = processes.run(lambda: _serve_and_die(write, gap))
    code = process.wait()
    assert code in (0, KILLED)
    wait_until(_nobody_is_in_a_transaction, 10, "PostgreSQL to notice")
    return code == KILLED


def _nobody_is_in_a_transaction() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
        )
        return bool(cursor.fetchone()[0] == 0)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Processes that are gone when the test is over."""
    started = Processes(tmp_path)
    yield started
    started.kill_all()


@pytest.fixture(autouse=True)
def _web(world: World) -> None:
    world.start(WEB)
