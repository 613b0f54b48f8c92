"""One expiry predicate, from one place (DESIGN rule 4.5)."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from config.kernel import sql
from relay.expiry import DUE_SQL, PENDING_SQL, due_at, pending_at
from relay.models import Envelope
from tests import factories
from tests.client import make_device
from tests.conftest import PROJECT

NOW = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
#: Seconds of a queue: expires a microsecond before now, now, a microsecond after.
BEFORE, AT, AFTER = NOW - MICROSECOND, NOW, NOW + MICROSECOND


@pytest.fixture
def _three_at_the_edge() -> None:
    device = make_device()
    for expires_at in (BEFORE, AT, AFTER):
        factories.store(device.id, accepted_at=NOW - timedelta(days=1), expires_at=expires_at)
        ended = {"outcome": "acknowledged", "cleanup_after": NOW}
        accepted_at = NOW - timedelta(days=1)
        factories.store(device.id, accepted_at=accepted_at, expires_at=expires_at, **ended)


def _by_sql(predicate: str) -> list[datetime]:
    statement = f"SELECT expires_at FROM relay_envelope WHERE {predicate} ORDER BY expires_at"
    return [row["expires_at"] for row in sql.rows(statement, {"now": NOW})]


def _by_orm(predicate) -> list[datetime]:  # type: ignore[no-untyped-def]
    rows = Envelope.objects.filter(predicate).order_by("expires_at")
    return list(rows.values_list("expires_at", flat=True))


@pytest.mark.usefixtures("_three_at_the_edge")
def test_both_forms_say_the_same_at_the_edge() -> None:
    """`now >= expires_at` is expired; what is not pending is neither."""
    assert _by_sql(PENDING_SQL) == _by_orm(pending_at(NOW)) == [AFTER]
    assert _by_sql(DUE_SQL) == _by_orm(due_at(NOW)) == [BEFORE, AT]


# --- Nobody else compares ----------------------------------------------------------------------

_APPS = ("relay", "quotas", "outbox", "idempotency", "adminui", "config")
_COMPARES = re.compile(
    r"""expires_at(__(gt|gte|lt|lte|range|date|in)\b|\s*(<=|>=|<|>)(?!=>)|\s+BETWEEN\b)"""
    r"""|(<=|>=|<|>)\s*(\w+\.)*expires_at\b""",
    re.IGNORECASE,
)
#: Who may, and why. A record of idempotency has an `expires_at` of its own.
ALLOWED = {
    "relay/expiry.py": "the one place",
    "relay/models.py": "constraints: expires_at > accepted_at, the receipt outlives it",
    "idempotency/services.py": "a record's own end",
    "idempotency/sql/prune_records.sql": "a record's own end",
    # Reported: it asks `expires_at > now` by itself, in the sense of PENDING_SQL.
    "relay/sql/acknowledge.sql": "decides between acknowledged and expired",
}


def compares_expiry(text: str) -> bool:
    """Whether this source compares an `expires_at` with anything."""
    without_comments = re.sub(r"(--|#)[^\n]*", "", text)
    return _COMPARES.search(without_comments) is not None


@pytest.mark.parametrize(
    ("text", "compares"),
    [
        ("filter(expires_at__gt=now)", True),
        ("WHERE expires_at <= %(now)s", True),
        ("if now >= envelope.expires_at:", True),
        ("WHERE now() > e.expires_at", True),
        ("expires_at BETWEEN a AND b", True),
        ("expires_at=place.accepted_at + ttl", False),
        ("order_by('expires_at')", False),
        ("ttl = envelope.expires_at - envelope.accepted_at", False),
        ("# expires_at > now is expired", False),
        ("def f(*, expires_at: datetime) -> datetime:", False),
    ],
)
def test_the_lint_knows_a_comparison(text: str, compares: bool) -> None:
    assert compares_expiry(text) is compares


def test_no_other_module_compares_expires_at() -> None:
    sources = [
        path
        for app in _APPS
        for path in (PROJECT / app).rglob("*")
        if path.suffix in (".py", ".sql") and "migrations" not in path.parts
    ]
    found = {
        str(path.relative_to(PROJECT))
        for path in sources
        if compares_expiry(path.read_text("utf-8"))
    }
    assert found <= set(ALLOWED)
    assert "relay/expiry.py" in found
