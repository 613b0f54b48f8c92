"""How the hot tables lie on disk, the retention a fresh instance starts with, and its identity."""

from uuid import uuid4

from django.conf import settings
from django.db import migrations
from django.utils import timezone

# Ciphertext does not compress: EXTERNAL spares the attempt, and keeps rows small by moving
# every larger body out of line at once. Envelopes change twice (outcome, cleaning), bodies never.
STORAGE = """
ALTER TABLE relay_body ALTER COLUMN ciphertext SET STORAGE EXTERNAL;
ALTER TABLE relay_body SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE relay_envelope SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
)
"""


def first_rows(apps, schema_editor):
    apps.get_model("relay", "RetentionPolicy").objects.get_or_create(
        version=1, defaults={"created_at": timezone.now()}
    )
    apps.get_model("relay", "Instance").objects.get_or_create(
        id=1,
        defaults={
            "shards": settings.RELAY_SHARDS,
            "epoch": uuid4(),
            "created_at": timezone.now(),
        },
    )


class Migration(migrations.Migration):
    dependencies = [("relay", "0001_initial"), ("config", "0001_relay_now")]
    operations = [
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
        migrations.RunPython(first_rows, migrations.RunPython.noop),
    ]
