"""The database's clock as a function of ours (config.kernel.clock)."""

from django.db import migrations

FORWARD = """
CREATE OR REPLACE FUNCTION relay_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT clock_timestamp()'
"""


class Migration(migrations.Migration):
    initial = True
    dependencies: list = []
    operations = [migrations.RunSQL(FORWARD, "DROP FUNCTION IF EXISTS relay_now()")]
