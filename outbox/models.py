"""Events on their way out, and the rows of background processes (DESIGN sections 2 and 3)."""

from django.db import models
from django.db.models import Q


class EventState(models.TextChoices):
    """Where an event is on its way."""

    PENDING = "pending"
    PUBLISHED = "published"
    DEAD = "dead"


class Event(models.Model):
    """An intent written by the business transaction, to be carried out after it commits.

    It holds no message data: which queue, and what kind of thing happened there. A handled
    event is deleted. `next_at` is when it is due: its backoff while it is pending, the end of
    its lease while it is published. `starts` counts starts that were not followed by an end.
    """

    pk = models.CompositePrimaryKey("shard", "event_id")
    shard = models.SmallIntegerField()
    event_id = models.UUIDField()
    schema_version = models.SmallIntegerField(default=1)
    topic = models.CharField(max_length=32)
    kind = models.CharField(max_length=32, default="")
    device_id = models.UUIDField()
    state = models.CharField(max_length=12, default=EventState.PENDING)
    deliveries = models.IntegerField(default=0)
    failures = models.IntegerField(default=0)
    starts = models.IntegerField(default=0)
    next_at = models.DateTimeField()
    last_error = models.CharField(max_length=64, default="")
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=EventState.values), name="event_state_known"
            ),
        ]
        indexes = [
            # With the topic in front of the time, a topic that is stuck under a million due
            # events costs the others nothing, and one that nobody knows costs nobody anything.
            models.Index(
                fields=["shard", "topic", "next_at", "event_id"],
                condition=~Q(state=EventState.DEAD),
                name="event_topic_due",
            ),
            models.Index(
                fields=["topic", "created_at"],
                condition=Q(state=EventState.DEAD),
                name="event_dead",
            ),
        ]


class Batch(models.Model):
    """One shard's part of a job: claimed together, and closed when each event is settled.

    `done_at` is the completion fact, whatever Redis says of the job.
    """

    pk = models.CompositePrimaryKey("shard", "batch_id")
    shard = models.SmallIntegerField()
    batch_id = models.UUIDField()
    topic = models.CharField(max_length=32)
    count = models.IntegerField()
    claimed_at = models.DateTimeField()
    done_at = models.DateTimeField(null=True)

    class Meta:
        # None on done_at: closing a batch stays a HOT update.
        indexes = [models.Index(fields=["shard", "claimed_at"], name="batch_by_claim")]


class Lease(models.Model):
    """Who may run something of which only one should run, and until when."""

    name = models.CharField(max_length=64, primary_key=True)
    holder = models.UUIDField()
    until = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class QueueMark(models.Model):
    """The mark that Redis must hold; when it does not, Redis was wiped (outbox.sentinel)."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    mark = models.UUIDField()

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="queue_mark_is_one_row")]

    def __str__(self) -> str:
        return "the queue's mark"


class Heartbeat(models.Model):
    """A background process that is alive, by its own word a moment ago."""

    process_id = models.UUIDField(primary_key=True)
    name = models.CharField(max_length=64)
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class SweepRun(models.Model):
    """When each sweep last ran, and how it went; and when a worker was last asked to run it."""

    name = models.CharField(max_length=64, primary_key=True)
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    succeeded_at = models.DateTimeField(null=True)
    rows = models.BigIntegerField(default=0)
    last_error = models.CharField(max_length=128, default="")

    def __str__(self) -> str:
        return self.name
