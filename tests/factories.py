"""Rows for tests that need many of them, or states that would take days to reach over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import factory
from django.db.models import F

from config.kernel.shards import shard_of_device, shard_of_hash
from idempotency.models import Record
from quotas.models import QueueUsage
from relay.models import Body, Envelope, Outcome


def now() -> datetime:
    """The test machine's time: PostgreSQL's as well, as long as no test moves that."""
    return datetime.now(UTC)


class BodyFactory(factory.django.DjangoModelFactory):
    """A ciphertext."""

    class Meta:
        model = Body

    ciphertext = b"ciphertext"


class EnvelopeFactory(factory.django.DjangoModelFactory):
    """An envelope accepted a minute ago; `device_id` is needed."""

    class Meta:
        model = Envelope

    shard = factory.LazyAttribute(lambda row: shard_of_device(row.device_id))
    message_id = factory.LazyFunction(uuid4)
    size = 10
    protocol_version = 1
    fingerprint = b"\x01\x00" + b"f" * 32
    accepted_at = factory.LazyFunction(lambda: now() - timedelta(minutes=1))
    expires_at = factory.LazyAttribute(lambda row: row.accepted_at + timedelta(days=7))
    receipt_until = factory.LazyAttribute(
        lambda row: max(row.accepted_at + timedelta(days=8), row.expires_at + timedelta(days=1))
    )


class RecordFactory(factory.django.DjangoModelFactory):
    """An answer that was given to a key."""

    class Meta:
        model = Record

    shard = factory.LazyAttribute(lambda row: shard_of_hash(row.scope_hash))
    scope_hash = factory.LazyFunction(lambda: uuid4().bytes * 2)
    attempt = factory.LazyFunction(uuid4)
    fingerprint = b"p" * 32
    status = 201
    body = "{}"
    expires_at = factory.LazyFunction(lambda: now() + timedelta(hours=25))


def store(device_id: UUID, **columns: Any) -> Envelope:
    """An envelope in a device's queue, its body, and its place in the usage row."""
    usage = QueueUsage.objects.get(shard=shard_of_device(device_id), device_id=device_id)
    envelope: Envelope = EnvelopeFactory(device_id=device_id, seq=usage.next_seq, **columns)
    if envelope.cleaned_at is None:
        BodyFactory(shard=envelope.shard, device_id=device_id, seq=envelope.seq)
    pending = 1 if envelope.outcome == Outcome.PENDING else 0
    QueueUsage.objects.filter(shard=usage.shard, device_id=device_id).update(
        next_seq=F("next_seq") + 1,
        pending_count=F("pending_count") + pending,
        pending_bytes=F("pending_bytes") + pending * (envelope.size or 0),
    )
    return envelope


def store_due(device_id: UUID, **columns: Any) -> Envelope:
    """A pending envelope whose time was up a second ago."""
    return store(
        device_id,
        accepted_at=now() - timedelta(days=7),
        expires_at=now() - timedelta(seconds=1),
        **columns,
    )


def store_ended(device_id: UUID, outcome: Outcome = Outcome.ACKNOWLEDGED) -> Envelope:
    """An envelope that ended half a minute ago and still has its body."""
    ended = now() - timedelta(seconds=30)
    acked = ended if outcome == Outcome.ACKNOWLEDGED else None
    return store(device_id, outcome=outcome, cleanup_after=ended, acked_at=acked)


def store_receipt(device_id: UUID, *, until: datetime) -> Envelope:
    """A receipt: an envelope without its body."""
    ended = until - timedelta(days=7)
    return store(
        device_id,
        accepted_at=until - timedelta(days=8),
        expires_at=until - timedelta(days=1),
        receipt_until=until,
        outcome=Outcome.ACKNOWLEDGED,
        cleaned_at=ended,
        size=None,
        protocol_version=None,
    )
