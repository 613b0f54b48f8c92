"""Changing how long mail and receipts are kept (PROTOCOL section 8)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adminui import policies
from adminui.seals import AuditRecord
from adminui.services.audit import audit_write
from adminui.services.policies import check_changes, checked_reason, differences
from config.kernel import advisory
from config.kernel.database import durable_transaction
from relay.selectors.retention import Retention, newest_retention
from relay.services.retention import retention_write_version


@dataclass(frozen=True)
class RetentionChange:
    """The retention before and after, and the audit entry that tells of it."""

    before: Retention
    after: Retention
    audit: AuditRecord


def retention_set(*, actor: str, reason: str, changes: Mapping[str, Any]) -> RetentionChange:
    """Write a new version of the retention, and its audit entry; neither without the other.

    `changes` maps names of Retention to whole numbers. What is stored keeps the times it was
    given: the new version is for what comes. Raises PolicyRefused for what is out of bounds,
    for changes that change nothing, and without a reason.
    """
    reason = checked_reason(reason)
    check_changes(changes, policies.RETENTION)
    with durable_transaction():
        advisory.hold_until_commit(advisory.AdvisoryLock.POLICY_VERSION)
        different = differences(asdict(newest_retention()), changes)
        before, after = retention_write_version(**different)
        entry = audit_write(
            actor=actor,
            action="retention.set",
            target="retention",
            before=asdict(before),
            after=asdict(after),
            reason=reason,
        )
    return RetentionChange(before, after, entry)
