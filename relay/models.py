"""Devices, envelopes and retention (DESIGN section 3)."""

from datetime import timedelta

from django.db import models
from django.db.models import F, Q


class Outcome(models.TextChoices):
    """What became of an envelope."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    PURGED = "purged"


class Envelope(models.Model):
    """One envelope without its ciphertext; it outlives that as the receipt.

    `cleanup_after` is the moment of the acknowledgement, expiry or purge: from then on the
    body is due for removal. Cleaning nulls it, size, acked_at and protocol_version, and
    `cleaned_at` holds no more than the day: a receipt must not tell when its device came to
    acknowledge (PROTOCOL section 5).
    """

    pk = models.CompositePrimaryKey("shard", "device_id", "seq")
    shard = models.SmallIntegerField()
    device_id = models.UUIDField()
    seq = models.BigIntegerField()
    message_id = models.UUIDField()
    size = models.IntegerField(null=True)
    protocol_version = models.SmallIntegerField(null=True)
    fingerprint = models.BinaryField(max_length=34)
    accepted_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    outcome = models.CharField(max_length=12, default=Outcome.PENDING)
    acked_at = models.DateTimeField(null=True)
    cleanup_after = models.DateTimeField(null=True)
    cleaned_at = models.DateTimeField(null=True)
    receipt_until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["shard", "device_id", "message_id"], name="envelope_message_id_once"
            ),
            models.CheckConstraint(
                condition=Q(outcome__in=Outcome.values), name="envelope_outcome_known"
            ),
            models.CheckConstraint(
                condition=Q(
                    outcome=Outcome.PENDING, cleanup_after__isnull=True, cleaned_at__isnull=True
                )
                | (~Q(outcome=Outcome.PENDING) & Q(cleanup_after__isnull=False, cleaned_at=None))
                | (~Q(outcome=Outcome.PENDING) & Q(cleanup_after=None, cleaned_at__isnull=False)),
                name="envelope_cleanup_after_its_end",
            ),
            models.CheckConstraint(
                condition=Q(cleaned_at__isnull=True, size__gt=0)
                | Q(cleaned_at__isnull=False, size__isnull=True, acked_at__isnull=True),
                name="envelope_cleaned_keeps_no_size",
            ),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("accepted_at")), name="envelope_expires_later"
            ),
            models.CheckConstraint(
                condition=Q(receipt_until__gte=F("expires_at") + timedelta(days=1)),
                name="envelope_receipt_outlives_expiry",
            ),
        ]
        indexes = [
            models.Index(
                fields=["shard", "device_id", "seq"],
                condition=Q(outcome=Outcome.PENDING),
                name="envelope_pending",
            ),
            models.Index(
                fields=["shard", "expires_at"],
                condition=Q(outcome=Outcome.PENDING),
                name="envelope_due_by_expiry",
            ),
            models.Index(
                fields=["shard", "cleanup_after"],
                condition=Q(cleanup_after__isnull=False, cleaned_at__isnull=True),
                name="envelope_due_by_cleanup",
            ),
            models.Index(
                fields=["shard", "receipt_until"],
                condition=Q(cleaned_at__isnull=False),
                name="envelope_due_by_receipt",
            ),
        ]


class Body(models.Model):
    """The ciphertext alone. Deleting the row is the physical removal."""

    pk = models.CompositePrimaryKey("shard", "device_id", "seq")
    shard = models.SmallIntegerField()
    device_id = models.UUIDField()
    seq = models.BigIntegerField()
    ciphertext = models.BinaryField()


class DeviceState(models.TextChoices):
    """Whether a device takes part."""

    ACTIVE = "active"
    DISABLED = "disabled"


class Device(models.Model):
    """A device's credential and how to wake it. Its queue's state is in QueueUsage."""

    device_id = models.UUIDField(primary_key=True)
    token_sha256 = models.BinaryField(max_length=32)
    state = models.CharField(max_length=12, default=DeviceState.ACTIVE)
    wake_transport = models.CharField(max_length=12, null=True)
    wake_sealed = models.BinaryField(null=True)
    created_at = models.DateTimeField()
    disabled_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=DeviceState.values), name="device_state_known"
            ),
            models.CheckConstraint(
                condition=Q(state=DeviceState.ACTIVE, disabled_at__isnull=True)
                | Q(state=DeviceState.DISABLED, disabled_at__isnull=False),
                name="device_disabled_since",
            ),
        ]

    def __str__(self) -> str:
        return "a device"  # never its id


class Provisioner(models.Model):
    """A credential of the deployment's identity service."""

    provisioner_id = models.UUIDField(primary_key=True)
    name = models.CharField(max_length=100, unique=True)
    token_sha256 = models.BinaryField(max_length=32)
    created_at = models.DateTimeField()
    rotated_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name


#: Bounds of PROTOCOL section 8, both ends included.
RETENTION_BOUNDS: dict[str, tuple[int, int]] = {
    "ttl_days": (1, 30),
    "min_ttl_seconds": (1, 86_400),
    "receipt_days": (2, 90),
}


def _within(name: str) -> models.CheckConstraint:
    low, high = RETENTION_BOUNDS[name]
    return models.CheckConstraint(
        condition=Q(**{f"{name}__gte": low, f"{name}__lte": high}),
        name=f"retention_{name}_within_bounds",
    )


class RetentionPolicy(models.Model):
    """One version of how long mail and receipts are kept. Append-only: the newest holds."""

    version = models.PositiveIntegerField(primary_key=True)
    ttl_days = models.IntegerField(default=7)
    min_ttl_seconds = models.IntegerField(default=60)
    receipt_days = models.IntegerField(default=8)
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "retention policies"
        constraints = [_within("ttl_days"), _within("min_ttl_seconds"), _within("receipt_days")]

    def __str__(self) -> str:
        return f"retention v{self.version}"


class Instance(models.Model):
    """The one row that says what this database is: its shards and its recovery epoch."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    shards = models.SmallIntegerField()
    epoch = models.UUIDField()
    created_at = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="instance_is_one_row")]

    def __str__(self) -> str:
        return "this instance"
