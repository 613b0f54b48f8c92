"""Claiming a key, and completing or releasing the claim (PROTOCOL section 1, DESIGN 4.1).

All three run inside the one transaction of the request, and the claim comes first: the row is
the first lock taken. A second request with the same key waits in `claim` until the first one
commits, and then finds its answer; after a rollback or a release it finds nothing and owns
the key itself.
"""

import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

from django.db import OperationalError
from django.db.models import QuerySet

from config.kernel import sql
from config.kernel.database import assert_in_transaction, is_lock_timeout
from config.kernel.problems import IdempotencyInProgress, IdempotencyKeyReused
from config.kernel.shards import shard_of_hash, shards_where
from idempotency.models import Record

#: A record lives at least 24 h; the hour more covers a retry that was on its way.
LIFETIME = timedelta(hours=25)
#: Stands in a claim until it is completed; nobody else ever sees it.
_NEVER = datetime(9999, 12, 31, tzinfo=UTC)
_PRUNE = Path(__file__).parent / "sql" / "prune_records.sql"


@dataclass(frozen=True)
class Claim:
    """A key that this attempt owns until it completes or releases it."""

    shard: int
    scope_hash: bytes = field(repr=False)
    attempt: UUID


@dataclass(frozen=True)
class Replay:
    """The answer that was given to this key before."""

    status: int
    body: str = field(repr=False)


_CLAIM = """
INSERT INTO idempotency_record
       (shard, scope_hash, attempt, fingerprint, status, body, expires_at)
VALUES (%(shard)s, %(scope_hash)s, %(attempt)s, %(fingerprint)s, 0, '', %(expires_at)s)
    ON CONFLICT (shard, scope_hash) DO NOTHING
"""


def claim(*, scope_hash: bytes, fingerprint: bytes) -> Claim | Replay:
    """Own the key, or find the answer that was given to it.

    Raises IdempotencyKeyReused when the key belongs to another request, and
    IdempotencyInProgress when the first one did not end within the lock timeout (2 s).
    """
    assert_in_transaction()
    own = Claim(shard=shard_of_hash(scope_hash), scope_hash=scope_hash, attempt=uuid4())
    while not _insert(own, fingerprint):
        found = _read(own)
        if found is None:  # pruned between the two statements: once more
            continue
        if not hmac.compare_digest(bytes(found.fingerprint), fingerprint):
            raise IdempotencyKeyReused
        return Replay(status=found.status, body=found.body)
    return own


def complete(*, claim: Claim, status: int, body: str, now: datetime) -> None:
    """Keep the answer with its effect, for LIFETIME from `now` (the database's clock)."""
    changed = _own(claim).update(status=status, body=body, expires_at=now + LIFETIME)
    if changed != 1:
        raise RuntimeError("a claim was completed that this attempt does not own")


def release(*, claim: Claim) -> None:
    """Free the key: the request was refused, and the same key may be tried again."""
    _own(claim).delete()


def _insert(own: Claim, fingerprint: bytes) -> bool:
    parameters = {
        "shard": own.shard,
        "scope_hash": own.scope_hash,
        "attempt": own.attempt,
        "fingerprint": fingerprint,
        "expires_at": _NEVER,
    }
    try:
        return sql.execute(_CLAIM, parameters) == 1
    except OperationalError as error:
        if is_lock_timeout(error):
            raise IdempotencyInProgress from error
        raise


def _read(own: Claim) -> Record | None:
    return Record.objects.filter(shard=own.shard, scope_hash=own.scope_hash).first()


def _own(claim: Claim) -> QuerySet[Record]:
    assert_in_transaction()
    return Record.objects.filter(
        shard=claim.shard, scope_hash=claim.scope_hash, attempt=claim.attempt
    )


def prune(*, shard: int, now: datetime, most: int) -> int:
    """Delete up to `most` records of one shard whose time is up; returns how many."""
    assert_in_transaction()
    return sql.execute(sql.load(_PRUNE), {"shard": shard, "now": now, "most": most})


def shards_with_due_records(*, now: datetime) -> list[int]:
    """Where there is something to prune."""
    return shards_where(Record.objects.filter(expires_at__lte=now))
