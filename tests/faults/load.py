"""Clients that write down what they were promised, and keep asking until they know.

A 201 counts once it is in the journal's file, synced to the disk. Whatever becomes of the
relay, the client repeats its submit with the same key until the answer is final.
"""

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from uuid import UUID, uuid4

import httpx

from tests.client import Party, RelayClient, make_device, new_key
from tests.concurrency.crowd import Crew
from tests.concurrency.oracle import Journal, Submitted
from tests.faults.world import World

#: Answers that leave the outcome open, or say that nothing could be done just now.
_AGAIN = frozenset({409, 500, 502, 503})
#: Seconds in which a final answer must come.
PATIENCE = 45


def ciphertext_of(message_id: UUID) -> bytes:
    """What a message holds, so that it can be sent again from its journal entry."""
    return sha256(message_id.bytes).digest() * (1 + message_id.bytes[0] % 8)


class DurableJournal(Journal):
    """A journal that would survive the client: a line a submit, synced when it was accepted."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.path = path

    def add(self, device_id: UUID, message_id: UUID, key: str, accepted: str | None) -> None:
        line = json.dumps([str(device_id), str(message_id), key, accepted]) + "\n"
        os.write(self._file, line.encode())
        if accepted is not None:
            os.fdatasync(self._file)
        super().add(device_id, message_id, key, accepted)

    @classmethod
    def read(cls, path: Path) -> Journal:
        """What another client wrote."""
        found = Journal()
        for line in path.read_text().splitlines():
            device_id, message_id, key, accepted = json.loads(line)
            found.add(UUID(device_id), UUID(message_id), key, accepted)
        return found


@dataclass
class Mailbox:
    """A recipient. `handle` is how the gateway knows it; `reads` whether it acknowledges."""

    device: Party
    handle: str | None = None
    reads: bool = False
    #: When the first attempt of the latest accepted submit began (time.monotonic).
    mail_since: float = 0.0
    asked_to_forget: set[str] = field(default_factory=set)
    forgotten: set[str] = field(default_factory=set)


@dataclass
class Attempt:
    """One submit with all its repetitions."""

    status: int
    seconds: float
    tries: int
    codes: list[str]


class Load:
    """Clients at work on a world."""

    def __init__(self, world: World, journal: Path, *, mailboxes: int = 6) -> None:
        self.world, self.journal = world, DurableJournal(journal)
        self.sender = make_device()
        self.client: RelayClient = world.client()
        self.attempts: list[Attempt] = []
        self._lock = threading.Lock()
        # Half of them sleep and must be woken; the others read and acknowledge.
        self.mailboxes = [
            Mailbox(make_device(), reads=True) if number % 2 else Mailbox(*world.woken_device())
            for number in range(mailboxes)
        ]

    @contextmanager
    def running(self, *, writers: int = 4, readers: int = 1, pause: float = 0.0) -> Iterator[None]:
        """Clients work as long as the block does."""
        with Crew() as crew:
            crew.add(lambda: (self.submit(), time.sleep(pause)), writers)
            if readers:
                crew.add(lambda: (self.read(), time.sleep(0.05)), readers)
            yield

    def submit(self) -> Attempt:
        """One envelope to somebody, until the answer is final."""
        mailbox = random.choice(self.mailboxes)
        message_id, key = uuid4(), new_key()
        began, codes = time.monotonic(), []
        while True:
            answer = self._try(mailbox, message_id, key)
            codes.append("LOST" if answer is None else _code(answer))
            if answer is not None and answer.status_code not in _AGAIN:
                break
            assert time.monotonic() - began < PATIENCE, f"no final answer: {codes[-20:]}"
            time.sleep(0.05)
        accepted = answer.text if answer.status_code == 201 else None
        self.journal.add(mailbox.device.id, message_id, key, accepted)
        attempt = Attempt(answer.status_code, time.monotonic() - began, len(codes), codes)
        with self._lock:
            self.attempts.append(attempt)
            if accepted:
                mailbox.mail_since = max(mailbox.mail_since, began)
        return attempt

    def read(self) -> None:
        """A reading device takes a page, and acknowledges some of it."""
        mailbox = random.choice([each for each in self.mailboxes if each.reads])
        try:
            page = self.client.pull(mailbox.device, limit=20)
            if page.status_code != 200:
                assert page.status_code == 503, page.text
                return
            ids = [each["message_id"] for each in page.json()["envelopes"]][::2]
            if not ids:
                return
            mailbox.asked_to_forget |= set(ids)
            answer = self.client.acknowledge(mailbox.device, ids)
        except httpx.TransportError:
            return
        if answer.status_code == 200:
            results = answer.json()["results"]
            assert {each["status"] for each in results} == {"acknowledged"}
            mailbox.forgotten |= set(ids)

    def again(self, entry: Submitted) -> httpx.Response:
        """The very same submit once more."""
        return self.client.submit(
            self.sender,
            entry.device_id,
            ciphertext_of(entry.message_id),
            message_id=entry.message_id,
            key=entry.key,
        )

    def latencies(self, since: int = 0) -> list[float]:
        """Seconds of each submit from the `since`-th on, sorted."""
        return sorted(attempt.seconds for attempt in self.attempts[since:])

    def codes(self) -> set[str]:
        """Every answer that any client ever got."""
        return {code for attempt in self.attempts for code in attempt.codes}

    def close(self) -> None:
        """No more of it."""
        self.client.http.close()

    def _try(self, mailbox: Mailbox, message_id: UUID, key: str) -> httpx.Response | None:
        try:
            return self.client.submit(
                self.sender,
                mailbox.device,
                ciphertext_of(message_id),
                message_id=message_id,
                key=key,
            )
        except httpx.TransportError:
            return None


def _code(answer: httpx.Response) -> str:
    return str(answer.json()["code"]) if answer.status_code >= 400 else str(answer.status_code)


def percentile(sorted_seconds: list[float], part: float) -> float:
    """Of so many sorted figures."""
    return sorted_seconds[min(len(sorted_seconds) - 1, int(len(sorted_seconds) * part))]
