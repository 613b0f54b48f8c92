"""The one clock: PostgreSQL's (DESIGN rule 4.4).

Every process sees the same time, whatever its own machine believes. The time is read in a
statement of its own, after any lock that matters is held, and then passed on as a parameter:
`now()` is the transaction's start, and a clock read in the locking statement dates from
before the wait.

`relay_now()` is an SQL function (config/migrations) so that a test can move time for every
process at once by replacing it.
"""

from datetime import UTC, datetime, timedelta

from django.db import connection

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def read() -> datetime:
    """The database's time now, in UTC with microseconds."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relay_now()")
        (now,) = cursor.fetchone()
    return now.astimezone(UTC)


def to_microseconds(moment: datetime) -> int:
    """Microseconds since 1970, exact (never through a float)."""
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    """The inverse of `to_microseconds`."""
    return _EPOCH + microseconds * _MICROSECOND


def rfc3339(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds and `Z` (PROTOCOL section 1)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
