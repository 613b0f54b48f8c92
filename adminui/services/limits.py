"""Changing the limits (PROTOCOL section 8)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from adminui import policies
from adminui.seals import AuditRecord
from adminui.services.audit import audit_write
from adminui.services.policies import (
    check_changes,
    checked_reason,
    checked_versions,
    differences,
)
from config.kernel import advisory
from config.kernel.database import durable_transaction
from quotas.selectors import Limits, newest_limits
from quotas.services import limits_write_version


@dataclass(frozen=True)
class LimitsChange:
    """The limits before and after, and the audit entry that tells of it."""

    before: Limits
    after: Limits
    audit: AuditRecord


def limits_set(*, actor: str, reason: str, changes: Mapping[str, Any]) -> LimitsChange:
    """Write a new version of the limits, and its audit entry; neither without the other.

    `changes` maps names of Limits to values: whole numbers, None for address_rate off, a
    list of numbers for protocol_versions. Raises PolicyRefused for what is out of bounds,
    for changes that change nothing, and without a reason.
    """
    reason = checked_reason(reason)
    wanted = dict(changes)
    check_changes(_without_versions(wanted), policies.LIMITS)
    if policies.PROTOCOL_VERSIONS in wanted:
        wanted[policies.PROTOCOL_VERSIONS] = checked_versions(wanted[policies.PROTOCOL_VERSIONS])
    with durable_transaction():
        advisory.hold_until_commit(advisory.AdvisoryLock.POLICY_VERSION)
        different = differences(_columns(newest_limits()), wanted)
        before, after = limits_write_version(**different)
        entry = audit_write(
            actor=actor,
            action="limits.set",
            target="limits",
            before=_columns(before),
            after=_columns(after),
            reason=reason,
        )
    return LimitsChange(before, after, entry)


def _without_versions(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name != policies.PROTOCOL_VERSIONS}


def _columns(limits: Limits) -> dict[str, Any]:
    return {**asdict(limits), policies.PROTOCOL_VERSIONS: list(limits.protocol_versions)}
