"""Every advisory-lock key of the project, in one place, so that no two can meet by chance."""

from enum import IntEnum

from django.db import connection

from config.kernel.database import assert_in_transaction


class AdvisoryLock(IntEnum):
    """Keys of `pg_advisory_xact_lock`; a value is never used again for something else."""

    AUDIT_CHAIN = 0x52454C41_59_01  # one writer of the audit log's hash chain at a time
    POLICY_VERSION = 0x52454C41_59_02  # one writer of the next policy version at a time


def hold_until_commit(key: AdvisoryLock) -> None:
    """Wait for the lock and hold it until the running transaction ends."""
    assert_in_transaction()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [int(key)])
