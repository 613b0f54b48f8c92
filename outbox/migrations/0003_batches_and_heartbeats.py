"""What dispatching needs besides events. New tables, and a column that old code leaves NULL."""

from django.db import migrations, models

STORAGE = """
ALTER TABLE outbox_batch SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
)
"""


class Migration(migrations.Migration):
    dependencies = [("outbox", "0002_storage")]
    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("pk", models.CompositePrimaryKey("shard", "batch_id", blank=True, editable=False, primary_key=True, serialize=False)),
                ("shard", models.SmallIntegerField()),
                ("batch_id", models.UUIDField()),
                ("topic", models.CharField(max_length=32)),
                ("count", models.IntegerField()),
                ("claimed_at", models.DateTimeField()),
                ("done_at", models.DateTimeField(null=True)),
            ],
            options={
                "indexes": [models.Index(fields=["shard", "claimed_at"], name="batch_by_claim")],
            },
        ),
        migrations.CreateModel(
            name="QueueMark",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("mark", models.UUIDField()),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", 1)), name="queue_mark_is_one_row"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Heartbeat",
            fields=[
                ("process_id", models.UUIDField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=64)),
                ("started_at", models.DateTimeField()),
                ("beat_at", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="sweeprun",
            name="queued_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
    ]
