"""Judging submissions and writing what is accepted: the reference path (PROTOCOL section 2).

One envelope or a hundred, the way is the same: lock the recipients' queues in the one order,
read the clock, look up what is there already, judge one entry after another, and write the
accepted ones together. The number of statements depends on the shards alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid5

from config.kernel import clock, logs, pseudonyms
from config.kernel.problems import MessageIdConflict, RecipientQuotaExceeded, RecipientUnknown
from outbox.services.adding import events_add, security_events_add
from quotas import usage as queue
from relay.fingerprints import envelope_fingerprint, is_same_ciphertext
from relay.models import Body, Envelope
from relay.services.expiry import expire_inline
from relay.services.submissions import Rules, Submission

#: Names security events, one a queue, kind and hour.
_SECURITY_NAMESPACE = UUID("5a0c9cf0-5f7c-4b53-9c52-3a5c8f0d7b11")
_CONFLICT_KIND = "message_id_conflict"

CONFLICT = logs.event("submit.conflict", "device")


@dataclass(frozen=True)
class Verdict:
    """An envelope that is in its queue: just now, or since an earlier submit."""

    envelope: Envelope
    is_new: bool


@dataclass
class Intake:
    """The locked queues of one transaction, at one moment, with what was accepted so far."""

    rules: Rules
    now: datetime
    lines: dict[UUID, queue.Line]
    known: dict[tuple[UUID, UUID], Envelope]
    accepted: list[tuple[Envelope, bytes]] = field(default_factory=list)
    conflicts: dict[UUID, Envelope] = field(default_factory=dict)

    @classmethod
    def open(cls, submissions: Sequence[Submission], rules: Rules) -> "Intake":
        """Lock the recipients' queues; then read the clock, and what they hold already."""
        by_shard: dict[int, list[Submission]] = defaultdict(list)
        for submission in submissions:
            by_shard[submission.shard].append(submission)
        lines: dict[UUID, queue.Line] = {}
        for shard, entries in sorted(by_shard.items()):
            device_ids = {entry.recipient_device_id for entry in entries}
            usages = queue.usage_lock_all(shard=shard, device_ids=device_ids)
            lines |= {device_id: queue.Line(usage) for device_id, usage in usages.items()}
        now = clock.read()  # after the locks, so that no earlier place gets a later time
        intake = cls(rules, now, lines, {})
        for shard, entries in sorted(by_shard.items()):
            intake._look_up(shard, entries)
            intake._make_room(shard, entries)
        return intake

    def judge(self, submission: Submission) -> Verdict:
        """Take one submission in.

        Raises RecipientUnknown, MessageIdConflict or RecipientQuotaExceeded, in this order.
        """
        line = self.lines.get(submission.recipient_device_id)
        if line is None or line.usage.closed_at is not None:
            raise RecipientUnknown
        existing = self.known.get((submission.recipient_device_id, submission.message_id))
        if existing is not None:
            return self._same_or_conflict(existing, submission)
        if not line.has_room(limits=self.rules.limits, size=submission.size):
            raise RecipientQuotaExceeded
        envelope = self._envelope(line, submission)
        self.known[(envelope.device_id, envelope.message_id)] = envelope
        self.accepted.append((envelope, submission.ciphertext))
        return Verdict(envelope, is_new=True)

    def write(self) -> None:
        """Store what was accepted, and tell the outbox.

        One wake for each queue, and a security event for each that saw a conflict, whatever
        became of the entry: that is for an admin to know.
        """
        by_shard: dict[int, list[tuple[Envelope, bytes]]] = defaultdict(list)
        for envelope, ciphertext in self.accepted:
            by_shard[envelope.shard].append((envelope, ciphertext))
        for shard, entries in sorted(by_shard.items()):
            device_ids = {envelope.device_id for envelope, _ in entries}
            queue.take_places(shard=shard, lines=[self.lines[each] for each in device_ids])
            Envelope.objects.bulk_create([envelope for envelope, _ in entries])
            Body.objects.bulk_create([_body(*entry) for entry in entries])
        for shard, entries in sorted(by_shard.items()):
            device_ids = {envelope.device_id for envelope, _ in entries}
            events_add(topic="wake", shard=shard, device_ids=sorted(device_ids), now=self.now)
        self._report_conflicts()

    def _look_up(self, shard: int, entries: Iterable[Submission]) -> None:
        """Envelopes under the same message ids, and receipts of those that went."""
        rows = Envelope.objects.filter(
            shard=shard,
            device_id__in={entry.recipient_device_id for entry in entries},
            message_id__in={entry.message_id for entry in entries},
        )
        self.known |= {(row.device_id, row.message_id): row for row in rows}

    def _make_room(self, shard: int, entries: Iterable[Submission]) -> None:
        """Expire what is due in queues that look full, once (DESIGN rule 4.7).

        So a sweeper that lags never makes a queue refuse mail.
        """
        wanted: dict[UUID, list[int]] = defaultdict(list)
        for entry in entries:
            if (entry.recipient_device_id, entry.message_id) not in self.known:
                wanted[entry.recipient_device_id].append(entry.size)
        full = [
            line.usage
            for device_id, sizes in wanted.items()
            if (line := self.lines.get(device_id)) is not None
            and not queue.has_room(usage=line.usage, limits=self.rules.limits, sizes=sizes)
        ]
        if not full:
            return
        if expire_inline(shard=shard, usages=full, now=self.now):
            again = queue.usage_lock_all(
                shard=shard, device_ids=[usage.device_id for usage in full]
            )
            self.lines |= {device_id: queue.Line(usage) for device_id, usage in again.items()}

    def _same_or_conflict(self, existing: Envelope, submission: Submission) -> Verdict:
        """The first one's times for the same ciphertext, whatever the recipient did since."""
        same = is_same_ciphertext(
            bytes(existing.fingerprint),
            device_id=existing.device_id,
            message_id=existing.message_id,
            ciphertext=submission.ciphertext,
        )
        if not same:
            self.conflicts[existing.device_id] = existing
            raise MessageIdConflict
        return Verdict(existing, is_new=False)

    def _report_conflicts(self) -> None:
        """A security event a queue, one an hour however often it happens."""
        by_shard: dict[int, dict[UUID, UUID]] = defaultdict(dict)
        for device_id, existing in self.conflicts.items():
            name = f"{_CONFLICT_KIND}/{device_id}/{self.now:%Y-%m-%dT%H}"
            by_shard[existing.shard][uuid5(_SECURITY_NAMESPACE, name)] = device_id
            CONFLICT(device=pseudonyms.of_device(device_id))
        for shard, devices in sorted(by_shard.items()):
            security_events_add(kind=_CONFLICT_KIND, shard=shard, devices=devices, now=self.now)

    def _envelope(self, line: queue.Line, submission: Submission) -> Envelope:
        place = line.take(now=self.now, size=submission.size)
        expires_at = place.accepted_at + timedelta(seconds=self.rules.ttl_of(submission))
        return Envelope(
            shard=line.usage.shard,
            device_id=line.usage.device_id,
            seq=place.seq,
            message_id=submission.message_id,
            size=submission.size,
            protocol_version=submission.protocol_version,
            fingerprint=envelope_fingerprint(
                device_id=line.usage.device_id,
                message_id=submission.message_id,
                ciphertext=submission.ciphertext,
            ),
            accepted_at=place.accepted_at,
            expires_at=expires_at,
            receipt_until=self.rules.retention.receipt_until(
                accepted_at=place.accepted_at, expires_at=expires_at
            ),
        )


def _body(envelope: Envelope, ciphertext: bytes) -> Body:
    return Body(
        shard=envelope.shard,
        device_id=envelope.device_id,
        seq=envelope.seq,
        ciphertext=ciphertext,
    )
