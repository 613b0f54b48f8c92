"""The policies in force, straight from the database, as operators see them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from adminui import policies
from quotas.models import LimitPolicy
from quotas.selectors import Limits
from relay.models import RetentionPolicy
from relay.selectors.retention import Retention


@dataclass(frozen=True)
class SettingInForce:
    """One setting: its value, and in words what it is and may be."""

    name: str
    label: str
    option: str
    value: Any
    words: str
    allowed: str


@dataclass(frozen=True)
class PolicyInForce:
    """One version of a policy, and since when it holds."""

    title: str
    version: int
    since: datetime
    settings: tuple[SettingInForce, ...]

    def document(self) -> dict[str, Any]:
        """For `--json`: the version, and every setting by its name."""
        values = {setting.name: setting.value for setting in self.settings}
        return {"version": self.version, "since": self.since, **values}


def limits_in_force() -> PolicyInForce:
    """The newest version of the limits."""
    policy = LimitPolicy.objects.order_by("-version")[0]
    return PolicyInForce("Limits", policy.version, policy.created_at, limits_settings(policy))


def retention_in_force() -> PolicyInForce:
    """The newest version of the retention."""
    policy = RetentionPolicy.objects.order_by("-version")[0]
    return PolicyInForce("Retention", policy.version, policy.created_at, retention_settings(policy))


def limits_settings(limits: Limits | LimitPolicy) -> tuple[SettingInForce, ...]:
    """Every setting of one version of the limits."""
    versions = list(limits.protocol_versions)
    accepted = SettingInForce(
        name=policies.PROTOCOL_VERSIONS,
        label=policies.PROTOCOL_VERSIONS_LABEL,
        option=policies.option(policies.PROTOCOL_VERSIONS),
        value=versions,
        words=", ".join(map(str, versions)),
        allowed=policies.PROTOCOL_VERSIONS_ALLOWED,
    )
    return (*_in_force(policies.LIMITS, limits), accepted)


def retention_settings(retention: Retention | RetentionPolicy) -> tuple[SettingInForce, ...]:
    """Every setting of one version of the retention."""
    return tuple(_in_force(policies.RETENTION, retention))


def _in_force(settings: Iterable[policies.Setting], holder: object) -> list[SettingInForce]:
    found = []
    for setting in settings:
        value = getattr(holder, setting.name)
        words = setting.value_in_words(value)
        found.append(
            SettingInForce(
                setting.name, setting.label, setting.option, value, words, setting.allowed
            )
        )
    return found
