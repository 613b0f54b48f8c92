"""What changes limits and usage."""

from dataclasses import asdict
from typing import Any

from django.db import transaction

from config.kernel import advisory, clock
from quotas.models import LimitPolicy
from quotas.selectors import LIMITS_IN_FORCE, Limits, limits_of, newest_limits


def limits_write_version(**changes: Any) -> tuple[Limits, Limits]:
    """Append a version that differs from the newest by `changes`; returns (before, after).

    Runs inside the caller's transaction, beside its audit entry. Raises ValidationError for
    what is out of bounds.
    """
    advisory.hold_until_commit(advisory.AdvisoryLock.POLICY_VERSION)
    before = newest_limits()
    values = {**asdict(before), **changes, "version": before.version + 1}
    values["protocol_versions"] = list(values["protocol_versions"])
    policy = LimitPolicy(**values, created_at=clock.read())
    policy.full_clean()
    policy.save(force_insert=True)
    transaction.on_commit(LIMITS_IN_FORCE.forget)
    return before, limits_of(policy)
