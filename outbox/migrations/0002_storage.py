"""How the events lie on disk: a queue table, where dead rows gather fastest."""

from django.db import migrations

STORAGE = """
ALTER TABLE outbox_event SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0
)
"""


class Migration(migrations.Migration):
    dependencies = [("outbox", "0001_initial")]
    operations = [migrations.RunSQL(STORAGE, migrations.RunSQL.noop)]
