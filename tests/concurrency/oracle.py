"""The oracle of the races (FAULTS): what must hold whatever happened, and whoever raced.

Load writes every answer into a `Journal`; afterwards `assert_sound` compares it with the
database, which it reads by plain SQL and by no code of the relay. `faults_found` says in words
what is wrong, so that a test can show that a broken build does not pass.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import connection

#: Each query returns rows of (device, …) that must not be there.
_FORBIDDEN = {
    "usage differs from the sums": """
        SELECT usage.device_id, usage.pending_count, usage.pending_bytes,
               count(envelope.seq), coalesce(sum(envelope.size), 0)
          FROM quotas_queueusage AS usage
          LEFT JOIN relay_envelope AS envelope
            ON envelope.device_id = usage.device_id AND envelope.outcome = 'pending'
         GROUP BY usage.device_id, usage.pending_count, usage.pending_bytes
        HAVING usage.pending_count <> count(envelope.seq)
            OR usage.pending_bytes <> coalesce(sum(envelope.size), 0)""",
    "seq is not dense": """
        SELECT envelope.device_id, min(seq), max(seq), count(*), max(usage.next_seq)
          FROM relay_envelope AS envelope JOIN quotas_queueusage AS usage USING (device_id)
         GROUP BY envelope.device_id
        HAVING min(seq) <> 1 OR max(seq) <> count(*) OR max(seq) + 1 <> max(usage.next_seq)""",
    "the line is ahead of what is stored": """
        SELECT usage.device_id, usage.next_seq FROM quotas_queueusage AS usage
         WHERE usage.next_seq <> 1 AND NOT EXISTS (
               SELECT 1 FROM relay_envelope WHERE device_id = usage.device_id)""",
    "accepted_at does not rise with seq": """
        SELECT device_id, seq, accepted_at FROM (
               SELECT device_id, seq, accepted_at,
                      lag(accepted_at) OVER (PARTITION BY device_id ORDER BY seq) AS before
                 FROM relay_envelope) AS line
         WHERE accepted_at <= before""",
    "a message id is there twice": """
        SELECT device_id, message_id, count(*) FROM relay_envelope
         GROUP BY device_id, message_id HAVING count(*) > 1""",
    "an envelope without a queue": """
        SELECT envelope.device_id, seq FROM relay_envelope AS envelope
          LEFT JOIN quotas_queueusage AS usage
            ON usage.device_id = envelope.device_id AND usage.shard = envelope.shard
         WHERE usage.device_id IS NULL""",
    "an envelope without its ciphertext": """
        SELECT envelope.device_id, seq FROM relay_envelope AS envelope
          LEFT JOIN relay_body AS body USING (shard, device_id, seq)
         WHERE cleaned_at IS NULL
           AND (body.device_id IS NULL OR octet_length(body.ciphertext) <> envelope.size)""",
    "ciphertext without its envelope": """
        SELECT body.device_id, seq FROM relay_body AS body
          LEFT JOIN relay_envelope AS envelope USING (shard, device_id, seq)
         WHERE envelope.device_id IS NULL OR envelope.cleaned_at IS NOT NULL""",
    "a key without its answer": """
        SELECT status, body FROM idempotency_record WHERE status NOT BETWEEN 200 AND 299""",
}


@dataclass(frozen=True)
class Submitted:
    """One submit that was tried, and the body of its 201 when it got one."""

    device_id: UUID
    message_id: UUID
    key: str
    accepted: str | None


@dataclass
class Journal:
    """What clients were told; many threads write it."""

    submitted: list[Submitted] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, device_id: UUID, message_id: UUID, key: str, accepted: str | None) -> None:
        """Note a submit; `accepted` is the 201's body."""
        with self._lock:
            self.submitted.append(Submitted(device_id, message_id, key, accepted))

    @property
    def accepted(self) -> list[Submitted]:
        """What got a 201."""
        return [entry for entry in self.submitted if entry.accepted is not None]


def faults_found(journal: Journal | None = None) -> list[str]:
    """Everything that is wrong, in words; empty when all is well."""
    found = []
    for text, query in _FORBIDDEN.items():
        rows = _rows(query)
        if rows:
            found.append(f"{text}: {rows[:3]}")
    return found + ([] if journal is None else _against_journal(journal))


def assert_sound(journal: Journal | None = None) -> None:
    """Nothing is wrong."""
    assert faults_found(journal) == []


def _against_journal(journal: Journal) -> list[str]:
    stored = {(row[0], row[1]) for row in _rows("SELECT device_id, message_id FROM relay_envelope")}
    accepted = {(entry.device_id, entry.message_id) for entry in journal.accepted}
    tried = {(entry.device_id, entry.message_id) for entry in journal.submitted}
    found = []
    if accepted - stored:
        found.append(f"accepted but not stored: {len(accepted - stored)}")
    if stored - tried:
        found.append(f"stored but never sent: {len(stored - tried)}")
    answers: dict[tuple[UUID, UUID], set[str]] = {}
    for entry in journal.accepted:
        answers.setdefault((entry.device_id, entry.message_id), set()).add(str(entry.accepted))
    if any(len(bodies) > 1 for bodies in answers.values()):
        found.append("one message got different answers")
    return found


def walk_faults(*, must: Iterable[Any], may: Iterable[Any], seen: Iterable[Any]) -> list[str]:
    """What is wrong with a walk that handed over `seen`, in order.

    `must` were pending from their 201 until the walk passed them; `may` ended meanwhile.
    """
    times = Counter(seen)
    must, may = set(must), set(may)
    found = []
    missing = must - set(times)
    if missing:
        found.append(f"missing: {len(missing)}")
    twice = [item for item, count in times.items() if count > 1]
    if twice:
        found.append(f"twice: {len(twice)}")
    if set(times) - must - may:
        found.append(f"never accepted: {len(set(times) - must - may)}")
    return found


def _rows(query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()
