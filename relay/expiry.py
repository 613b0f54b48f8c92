"""The one expiry predicate (DESIGN rule 4.5): `now >= expires_at` is expired.

Every read and every flip asks here, as a Q for the ORM or as a fragment for a `.sql` file,
and brings the database's time along. A test proves the two forms equal.
"""

from datetime import datetime

from django.db.models import Q

from relay.models import Outcome

#: Waiting for its device, and its time is not up. For statements with a parameter `now`.
PENDING_SQL = "outcome = 'pending' AND expires_at > %(now)s"
#: Waiting, but its time is up: it must not be handed over, and is due for the flip.
DUE_SQL = "outcome = 'pending' AND expires_at <= %(now)s"
#: Waiting, whether its time is up or not: what a closed queue still holds.
PENDING_OR_DUE_SQL = "outcome = 'pending'"


def pending_at(now: datetime) -> Q:
    """PENDING_SQL for the ORM."""
    return Q(outcome=Outcome.PENDING, expires_at__gt=now)


def due_at(now: datetime) -> Q:
    """DUE_SQL for the ORM."""
    return Q(outcome=Outcome.PENDING, expires_at__lte=now)
