"""What changes the retention policy."""

from dataclasses import asdict
from typing import Any

from django.db import transaction

from config.kernel import advisory, clock
from relay.models import RetentionPolicy
from relay.selectors.retention import (
    RETENTION_IN_FORCE,
    Retention,
    newest_retention,
    retention_of,
)


def retention_write_version(**changes: Any) -> tuple[Retention, Retention]:
    """Append a version that differs from the newest by `changes`; returns (before, after).

    Runs inside the caller's transaction, beside its audit entry. Raises ValidationError for
    what is out of bounds. Nothing stored changes: an envelope keeps the times it was given.
    """
    advisory.hold_until_commit(advisory.AdvisoryLock.POLICY_VERSION)
    before = newest_retention()
    values = {**asdict(before), **changes, "version": before.version + 1}
    policy = RetentionPolicy(**values, created_at=clock.read())
    policy.full_clean()
    policy.save(force_insert=True)
    transaction.on_commit(RETENTION_IN_FORCE.forget)
    return before, retention_of(policy)
