"""The limits in force: read from the newest version, believed for a few seconds."""

from dataclasses import dataclass

from config.kernel.caching import TimedValue
from quotas.models import LimitPolicy


@dataclass(frozen=True)
class Limits:
    """One version of the limits (PROTOCOL section 8). Sizes in bytes; None is off."""

    version: int
    envelope_bytes: int
    pending_count: int
    pending_bytes: int
    actor_rate: int
    address_rate: int | None
    window_seconds: int
    protocol_versions: tuple[int, ...]


def newest_limits() -> Limits:
    """The limits in force, from the database."""
    return limits_of(LimitPolicy.objects.order_by("-version")[0])


def limits_of(policy: LimitPolicy) -> Limits:
    """A row as a value."""
    return Limits(
        version=policy.version,
        envelope_bytes=policy.envelope_bytes,
        pending_count=policy.pending_count,
        pending_bytes=policy.pending_bytes,
        actor_rate=policy.actor_rate,
        address_rate=policy.address_rate,
        window_seconds=policy.window_seconds,
        protocol_versions=tuple(policy.protocol_versions),
    )


#: In force in every process within 5 s of a change (PROTOCOL section 8).
LIMITS_IN_FORCE: TimedValue[Limits] = TimedValue(newest_limits)


def current_limits() -> Limits:
    """The limits in force, a few seconds old at most."""
    return LIMITS_IN_FORCE.get()
