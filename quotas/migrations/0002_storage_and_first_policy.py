"""How the hot table lies on disk, and the limits a fresh instance starts with."""

from django.db import migrations
from django.utils import timezone

# A usage row is updated with every submit: half-empty pages keep those updates on their page
# (HOT), and vacuum comes by count, not by a share of the table.
STORAGE = """
ALTER TABLE quotas_queueusage SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
)
"""


def first_policy(apps, schema_editor):
    apps.get_model("quotas", "LimitPolicy").objects.get_or_create(
        version=1, defaults={"protocol_versions": [1], "created_at": timezone.now()}
    )


class Migration(migrations.Migration):
    dependencies = [("quotas", "0001_initial")]
    operations = [
        migrations.RunSQL(STORAGE, migrations.RunSQL.noop),
        migrations.RunPython(first_policy, migrations.RunPython.noop),
    ]
