"""What this instance says of itself, and whether its database fits its settings."""

from typing import Any

from django.conf import settings

from quotas.selectors import Limits, current_limits
from relay.selectors.retention import current_retention

STATEMENT = {
    "retention": (
        "Ciphertext is kept until its device acknowledges it or its time is up, and is removed "
        "from the database within an hour after that. A receipt without ciphertext stays until "
        "it lapses, so that repeated submits and acknowledgements get the same answer."
    ),
    "backups": (
        "A deletion removes rows from the live database. Backups and storage media that the "
        "operator keeps may hold the ciphertext for as long as the operator keeps them."
    ),
    "metadata": (
        "The relay cannot read messages. It sees which device receives, from which credential "
        "and address a submit comes, and the size, time and frequency of envelopes. It does not "
        "store the sender with an envelope. Padding is the client's task."
    ),
}


def instance_document() -> dict[str, Any]:
    """The body of `GET /v1/instance` (PROTOCOL section 6)."""
    limits, retention = current_limits(), current_retention()
    return {
        "name": settings.RELAY_INSTANCE_NAME,
        "protocol_versions": list(limits.protocol_versions),
        "ttl": {
            "minimum": retention.min_ttl_seconds,
            "default": retention.ttl_seconds,
            "maximum": retention.ttl_seconds,
        },
        "limits": limits_document(limits),
        "receipt_days": retention.receipt_days,
        "statement": STATEMENT,
    }


def limits_document(limits: Limits) -> dict[str, int]:
    """The storage limits, in bytes and envelopes, as clients see them."""
    return {
        "envelope_bytes": limits.envelope_bytes,
        "pending_count": limits.pending_count,
        "pending_bytes": limits.pending_bytes,
    }
