"""The fast path of a submit (relay/services/submit_at_once.py)."""

from pathlib import Path

from django.db import migrations

FUNCTION = Path(__file__).parent.parent / "sql" / "functions" / "submit_at_once.sql"


class Migration(migrations.Migration):
    dependencies = [
        ("relay", "0002_storage_and_first_rows"),
        ("config", "0001_relay_now"),
        ("idempotency", "0002_storage"),
        ("outbox", "0004_event_indexes"),
        ("quotas", "0002_storage_and_first_policy"),
    ]
    operations = [
        # As a function's body is compiled when it is called, the file may be read as it is now:
        # a later version that needs more of the tables comes with a migration after them.
        migrations.RunSQL(
            FUNCTION.read_text("utf-8"), "DROP FUNCTION IF EXISTS relay_submit_at_once"
        )
    ]
