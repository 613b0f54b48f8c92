"""Limits, and what each device's queue uses of them (DESIGN section 3)."""

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

KIB, MIB, GIB = 2**10, 2**20, 2**30


class QueueUsage(models.Model):
    """The clock and the line of one device's queue, and its running totals.

    Whoever changes the queue locks this row first; `next_seq` and `last_accepted_us` are taken
    under that lock (DESIGN rule 4.4). `closed_at` set means that the device is disabled: the
    recipient check, and the durable intent to remove its mail.
    """

    pk = models.CompositePrimaryKey("shard", "device_id")
    shard = models.SmallIntegerField()
    device_id = models.UUIDField()
    pending_count = models.BigIntegerField(default=0)
    pending_bytes = models.BigIntegerField(default=0)
    next_seq = models.BigIntegerField(default=1)
    last_accepted_us = models.BigIntegerField(default=0)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(pending_count__gte=0), name="usage_pending_count_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(pending_bytes__gte=0), name="usage_pending_bytes_not_negative"
            ),
            models.CheckConstraint(condition=Q(next_seq__gte=1), name="usage_next_seq_from_one"),
        ]
        indexes = [
            # On no counter, so that an update of the counters stays HOT.
            models.Index(
                fields=["shard", "device_id"],
                condition=Q(closed_at__isnull=False),
                name="usage_closed",
            ),
        ]


#: Bounds of PROTOCOL section 8, both ends included. The database knows them too.
BOUNDS: dict[str, tuple[int, int]] = {
    "envelope_bytes": (1 * KIB, 1 * MIB),
    "pending_count": (10, 100_000),
    "pending_bytes": (1 * MIB, 4 * GIB),
    "actor_rate": (1, 1_000_000),
    "address_rate": (1, 1_000_000),
    "window_seconds": (1, 3_600),
}


def check_protocol_versions(versions: list[int]) -> None:
    """1 to 255 different versions, each 1 to 255, in rising order."""
    if not versions or versions != sorted(set(versions)):
        raise ValidationError("name at least one version, each once, in rising order")
    if versions[0] < 1 or versions[-1] > 255:
        raise ValidationError("each version is from 1 to 255")


def _within(name: str, *, optional: bool = False) -> models.CheckConstraint:
    low, high = BOUNDS[name]
    condition = Q(**{f"{name}__gte": low, f"{name}__lte": high})
    if optional:
        condition |= Q(**{f"{name}__isnull": True})
    return models.CheckConstraint(condition=condition, name=f"limits_{name}_within_bounds")


class LimitPolicy(models.Model):
    """One version of the limits. Append-only: the newest version holds."""

    version = models.PositiveIntegerField(primary_key=True)
    envelope_bytes = models.BigIntegerField(default=64 * KIB)
    pending_count = models.BigIntegerField(default=1_000)
    pending_bytes = models.BigIntegerField(default=64 * MIB)
    actor_rate = models.BigIntegerField(default=200)
    address_rate = models.BigIntegerField(default=2_000, null=True, blank=True)
    window_seconds = models.BigIntegerField(default=10)
    protocol_versions = ArrayField(
        models.SmallIntegerField(), default=list, validators=[check_protocol_versions]
    )
    created_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "limit policies"
        constraints = [
            _within("envelope_bytes"),
            _within("pending_count"),
            _within("pending_bytes"),
            _within("actor_rate"),
            _within("address_rate", optional=True),
            _within("window_seconds"),
            models.CheckConstraint(
                condition=Q(protocol_versions__len__gte=1)
                & Q(protocol_versions__contained_by=list(range(1, 256))),
                name="limits_protocol_versions_within_bounds",
            ),
        ]

    def __str__(self) -> str:
        return f"limits v{self.version}"
