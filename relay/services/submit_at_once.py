"""The fast path of a submit: one statement in one round trip (ADR 0004).

Most submits are nothing special: a new key, a known queue with room, a new message_id. For
them `relay_submit_at_once`, an SQL function, does what `services/submit.py` does, row for row,
as a test shows that gives both the same history. Whatever is special it leaves to that path,
which is the one to read first.
"""

from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import uuid_utils.compat
from django.db import OperationalError, connection

from config.kernel import strict_json
from config.kernel.database import assert_no_transaction, is_lock_timeout, lock_waited_for
from config.kernel.problems import IdempotencyInProgress
from config.kernel.shards import shard_of_hash
from idempotency.models import Record
from idempotency.services import LIFETIME
from relay.fingerprints import envelope_fingerprint
from relay.selectors.retention import RECEIPT_AFTER_EXPIRY
from relay.services.submissions import Rules, Submission

_CALL = """
SELECT relay_submit_at_once(
    %(key_shard)s::smallint, %(scope_hash)s, %(attempt)s, %(request)s, %(lifetime)s,
    %(shard)s::smallint, %(device_id)s, %(message_id)s, %(protocol_version)s::smallint,
    %(ciphertext)s, %(fingerprint)s, %(ttl)s, %(receipt)s, %(receipt_after_expiry)s,
    %(most_count)s::bigint, %(most_bytes)s::bigint, %(event_id)s, %(answer)s)
"""


def submit_at_once(
    *, scope_hash: bytes, fingerprint: bytes, submission: Submission, rules: Rules
) -> str | None:
    """Store the envelope, and return the body of the 201; None when it is not that simple.

    Whatever policy says of the envelope was asked before. Raises IdempotencyInProgress when
    the key's first request does not end within the lock timeout.
    """
    assert_no_transaction()
    retention, ttl = rules.retention, rules.ttl_of(submission)
    parameters: dict[str, Any] = {
        "key_shard": shard_of_hash(scope_hash),
        "scope_hash": scope_hash,
        "attempt": uuid4(),
        "request": fingerprint,
        "lifetime": LIFETIME,
        "shard": submission.shard,
        "device_id": submission.recipient_device_id,
        "message_id": submission.message_id,
        "protocol_version": submission.protocol_version,
        "ciphertext": submission.ciphertext,
        "fingerprint": envelope_fingerprint(
            device_id=submission.recipient_device_id,
            message_id=submission.message_id,
            ciphertext=submission.ciphertext,
        ),
        "ttl": timedelta(seconds=ttl),
        "receipt": timedelta(days=retention.receipt_days),
        "receipt_after_expiry": RECEIPT_AFTER_EXPIRY,
        "most_count": rules.limits.pending_count,
        "most_bytes": rules.limits.pending_bytes,
        "event_id": uuid_utils.compat.uuid7(),
        "answer": _answer(submission, ttl),
    }
    try:
        with connection.cursor() as cursor:
            cursor.execute(_CALL, parameters)
            (body,) = cursor.fetchone()
    except OperationalError as error:
        if is_lock_timeout(error) and lock_waited_for(error) == Record._meta.db_table:
            raise IdempotencyInProgress from error
        raise
    return cast(str | None, body)


def _answer(submission: Submission, ttl: int) -> str:
    """`accepted_document` as text, with places for the two times."""
    document = {
        "message_id": str(submission.message_id),
        "accepted_at": "%1$s",
        "expires_at": "%2$s",
        "ttl_seconds": ttl,
    }
    return strict_json.dumps(document)
