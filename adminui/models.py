"""The audit log (DESIGN sections 2 and 3)."""

import pgtrigger
from django.db import models


class AuditEntry(models.Model):
    """Who did what, when and why. Append-only by trigger; each entry seals the one before it.

    `id` is dense and `hash` covers every column and the hash of the entry before, so that a
    changed, a missing and an inserted entry all show. It holds no content, no token and no
    device id in clear.
    """

    id = models.PositiveBigIntegerField(primary_key=True)
    at = models.DateTimeField()
    actor = models.CharField(max_length=150)
    source = models.CharField(max_length=64, blank=True)
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200, blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    reason = models.TextField(blank=True)
    event_id = models.UUIDField(null=True, blank=True, unique=True)
    previous_hash = models.BinaryField(max_length=32)
    hash = models.BinaryField(max_length=32)

    class Meta:
        verbose_name_plural = "audit entries"
        triggers = [
            pgtrigger.Protect(
                name="audit_append_only", operation=pgtrigger.Update | pgtrigger.Delete
            )
        ]

    def __str__(self) -> str:
        return f"#{self.id} {self.action}"
