"""The retention in force: read from the newest version, believed for a few seconds."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from config.kernel.caching import TimedValue
from relay.models import RetentionPolicy

#: A receipt outlives the expiry by this at least (PROTOCOL section 5).
RECEIPT_AFTER_EXPIRY = timedelta(days=1)


@dataclass(frozen=True)
class Retention:
    """One version of how long mail and receipts are kept (PROTOCOL section 8)."""

    version: int
    ttl_days: int
    min_ttl_seconds: int
    receipt_days: int

    @property
    def ttl_seconds(self) -> int:
        """The instance TTL: the default and the most that a sender may ask for."""
        return self.ttl_days * 86_400

    def receipt_until(self, *, accepted_at: datetime, expires_at: datetime) -> datetime:
        """When the receipt lapses (PROTOCOL section 5): never before expiry and a day more."""
        return max(
            accepted_at + timedelta(days=self.receipt_days), expires_at + RECEIPT_AFTER_EXPIRY
        )


def newest_retention() -> Retention:
    """The retention in force, from the database."""
    return retention_of(RetentionPolicy.objects.order_by("-version")[0])


def retention_of(policy: RetentionPolicy) -> Retention:
    """A row as a value."""
    return Retention(
        version=policy.version,
        ttl_days=policy.ttl_days,
        min_ttl_seconds=policy.min_ttl_seconds,
        receipt_days=policy.receipt_days,
    )


#: In force in every process within 5 s of a change (PROTOCOL section 8).
RETENTION_IN_FORCE: TimedValue[Retention] = TimedValue(newest_retention)


def current_retention() -> Retention:
    """The retention in force, a few seconds old at most."""
    return RETENTION_IN_FORCE.get()
