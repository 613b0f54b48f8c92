"""The settings that admins may change: their names, units and bounds, in one place.

Commands, errors and pages all describe a setting from here, so that they agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adminui import units
from quotas.models import BOUNDS
from relay.models import RETENTION_BOUNDS

PROTOCOL_VERSIONS = "protocol_versions"


def option(name: str) -> str:
    """The command-line option of a setting."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Setting:
    """A whole number within bounds, both ends included; `optional` ones may be off."""

    name: str
    label: str
    words: Callable[[int], str]
    low: int
    high: int
    optional: bool = False

    @property
    def option(self) -> str:
        """The command-line option that sets it."""
        return option(self.name)

    @property
    def allowed(self) -> str:
        """The bounds in words."""
        off = ", or off" if self.optional else ""
        return f"{self.words(self.low)} to {self.words(self.high)}{off}"

    @property
    def bounds(self) -> str:
        """The bounds in figures, as a command takes them; in words too where those differ."""
        off = ", or off" if self.optional else ""
        if self.words is units.count:
            return f"{self.low} to {self.high}{off}"
        return f"{self.low} to {self.high}{off} ({self.words(self.low)} to {self.words(self.high)})"

    def value_in_words(self, value: int | None) -> str:
        """One value in words."""
        return "off" if value is None else self.words(value)

    def admits(self, value: object) -> bool:
        """Whether the setting may have this value."""
        if value is None:
            return self.optional
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and self.low <= value <= self.high  # type: ignore[operator]


def _setting(
    bounds: Mapping[str, tuple[int, int]],
    name: str,
    label: str,
    words: Callable[[int], str],
    **more: Any,
) -> Setting:
    low, high = bounds[name]
    return Setting(name, label, words, low, high, **more)


#: PROTOCOL section 8. Within these bounds no two settings contradict each other: the largest
#: envelope fits the smallest byte quota (1 MiB), and the largest minimum TTL is the smallest
#: instance TTL (1 day). A receipt outlives its envelope by a day whatever `receipt_days` says,
#: and an address may be allowed less than an actor. So nothing is refused for two settings'
#: sake.
LIMITS: tuple[Setting, ...] = (
    _setting(BOUNDS, "envelope_bytes", "Envelope size", units.size),
    _setting(BOUNDS, "pending_count", "Pending envelopes a device", units.count),
    _setting(BOUNDS, "pending_bytes", "Pending bytes a device", units.size),
    _setting(BOUNDS, "actor_rate", "Submits an actor, a window", units.count),
    _setting(BOUNDS, "address_rate", "Submits an address, a window", units.count, optional=True),
    _setting(BOUNDS, "window_seconds", "Window", units.duration),
)
RETENTION: tuple[Setting, ...] = (
    _setting(RETENTION_BOUNDS, "ttl_days", "Instance TTL", units.days),
    _setting(RETENTION_BOUNDS, "min_ttl_seconds", "Sender's minimum TTL", units.duration),
    _setting(RETENTION_BOUNDS, "receipt_days", "Receipts kept", units.days),
)
PROTOCOL_VERSIONS_LABEL = "Protocol versions accepted"
PROTOCOL_VERSIONS_ALLOWED = "each 1 to 255, at least one"
