"""What was answered to which key (PROTOCOL section 1, DESIGN section 3)."""

from django.db import models
from django.db.models import Q


class Record(models.Model):
    """The answer to one (caller, route, key), written in the transaction of its effect.

    `scope_hash` is a keyed hash of caller, route and key, `fingerprint` one of the request's
    fields; neither can be turned back. `body` is the answer as text, given again byte for
    byte. A row that others can see is always complete: it commits with its effect or not at
    all, which the constraint says too.
    """

    pk = models.CompositePrimaryKey("shard", "scope_hash")
    shard = models.SmallIntegerField()
    scope_hash = models.BinaryField(max_length=32)
    attempt = models.UUIDField()
    fingerprint = models.BinaryField(max_length=32)
    status = models.SmallIntegerField(default=0)
    body = models.TextField(default="")
    expires_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(status=0) | Q(status__gte=200, status__lte=299),
                name="record_status_is_claimed_or_success",
            ),
        ]
        indexes = [models.Index(fields=["shard", "expires_at"], name="record_due_by_expiry")]
