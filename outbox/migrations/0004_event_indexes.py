"""Events are claimed topic by topic: the index of what is due begins with shard and topic.

CONCURRENTLY, as events may have gathered by the million while nothing dispatched them. One
that was interrupted leaves an index that is not valid, so each begins by dropping it.
"""

from django.db import migrations, models

_DUE = """
CREATE INDEX CONCURRENTLY event_topic_due ON outbox_event (shard, topic, next_at, event_id)
 WHERE state <> 'dead'
"""
_DUE_BEFORE = """
CREATE INDEX CONCURRENTLY event_due ON outbox_event (shard, next_at, event_id)
 WHERE state <> 'dead'
"""
_DEAD = "CREATE INDEX CONCURRENTLY event_dead ON outbox_event (topic, created_at) WHERE state = 'dead'"


def _drop(name: str) -> str:
    return f"DROP INDEX CONCURRENTLY IF EXISTS {name}"


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("outbox", "0003_batches_and_heartbeats")]
    operations = [
        migrations.RunSQL(
            [_drop("event_topic_due"), _DUE],
            [_drop("event_topic_due")],
            state_operations=[
                migrations.AddIndex(
                    model_name="event",
                    index=models.Index(
                        condition=models.Q(("state", "dead"), _negated=True),
                        fields=["shard", "topic", "next_at", "event_id"],
                        name="event_topic_due",
                    ),
                )
            ],
        ),
        migrations.RunSQL(
            [_drop("event_dead"), _DEAD],
            [_drop("event_dead")],
            state_operations=[
                migrations.AddIndex(
                    model_name="event",
                    index=models.Index(
                        condition=models.Q(("state", "dead")),
                        fields=["topic", "created_at"],
                        name="event_dead",
                    ),
                )
            ],
        ),
        migrations.RunSQL(
            [_drop("event_due")],
            [_drop("event_due"), _DUE_BEFORE],
            state_operations=[migrations.RemoveIndex(model_name="event", name="event_due")],
        ),
    ]
