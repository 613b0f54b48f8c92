"""How the records lie on disk: each is inserted, updated once, and deleted a day later."""

from django.db import migrations

STORAGE = """
ALTER TABLE idempotency_record SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0
)
"""


class Migration(migrations.Migration):
    dependencies = [("idempotency", "0001_initial")]
    operations = [migrations.RunSQL(STORAGE, migrations.RunSQL.noop)]
