"""What a sender hands in, and what the instance's policies say of it."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

from config.kernel import clock
from config.kernel.problems import (
    EnvelopeTooLarge,
    Problem,
    ProtocolVersionUnsupported,
    TtlOutOfRange,
)
from config.kernel.shards import shard_of_device
from idempotency.fingerprints import Field
from quotas.selectors import Limits, current_limits
from relay.models import Envelope
from relay.selectors.retention import Retention, current_retention


@dataclass(frozen=True)
class Submission:
    """One envelope as its sender gave it. `ttl_seconds` None asks for the instance TTL."""

    recipient_device_id: UUID
    message_id: UUID
    protocol_version: int
    ciphertext: bytes = field(repr=False)
    ttl_seconds: int | None

    @property
    def size(self) -> int:
        """Bytes of ciphertext: what counts against every limit."""
        return len(self.ciphertext)

    @property
    def shard(self) -> int:
        """Where the recipient's queue is."""
        return shard_of_device(self.recipient_device_id)

    def fingerprint_fields(self) -> tuple[Field, ...]:
        """What makes it the same submission when it is sent again."""
        return (
            self.recipient_device_id.bytes,
            self.message_id.bytes,
            self.protocol_version,
            self.ttl_seconds,
            sha256(self.ciphertext).digest(),
        )


@dataclass(frozen=True)
class Rules:
    """The policies that a submission is judged by."""

    limits: Limits
    retention: Retention

    @classmethod
    def current(cls) -> "Rules":
        """Those in force."""
        return cls(current_limits(), current_retention())

    def check(self, submission: Submission) -> None:
        """What policy says of this envelope, whoever it is for.

        Raises ProtocolVersionUnsupported, EnvelopeTooLarge or TtlOutOfRange.
        """
        if submission.protocol_version not in self.limits.protocol_versions:
            raise ProtocolVersionUnsupported
        if submission.size > self.limits.envelope_bytes:
            raise EnvelopeTooLarge
        ttl = submission.ttl_seconds
        if ttl is not None and ttl < self.retention.min_ttl_seconds:
            raise TtlOutOfRange

    def allow(self, submission: Submission) -> bool:
        """Whether policy has nothing against it."""
        try:
            self.check(submission)
        except Problem:
            return False
        return True

    def ttl_of(self, submission: Submission) -> int:
        """Seconds that it will be kept: what was asked for, cut to the instance TTL."""
        longest = self.retention.ttl_seconds
        return longest if submission.ttl_seconds is None else min(submission.ttl_seconds, longest)


def accepted_document(envelope: Envelope) -> dict[str, Any]:
    """The body of a 201 and of a duplicate's 200 (PROTOCOL section 2)."""
    ttl = envelope.expires_at - envelope.accepted_at
    return {
        "message_id": str(envelope.message_id),
        "accepted_at": clock.rfc3339(envelope.accepted_at),
        "expires_at": clock.rfc3339(envelope.expires_at),
        "ttl_seconds": int(ttl.total_seconds()),
    }
