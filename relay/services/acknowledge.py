"""Acknowledging envelopes (PROTOCOL section 4)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from config.kernel import clock, sql
from config.kernel.problems import Unauthenticated
from config.kernel.shards import shard_of_device
from idempotency.fingerprints import Field, request_fingerprint
from quotas import usage as queue
from relay.callers import Caller
from relay.expiry import PENDING_SQL
from relay.models import Outcome
from relay.services.once import Answer, Effect, Request, run_once
from relay.services.usage import give_back

ROUTE = "POST /v1/acks"
_STATEMENT = Path(__file__).parent.parent / "sql" / "acknowledge.sql"
_STATUS = {
    Outcome.ACKNOWLEDGED: "acknowledged",
    Outcome.EXPIRED: "expired",
    Outcome.PURGED: "expired",  # removed before it was acknowledged: the client sees no more
}


def acknowledge(*, caller: Caller, key: str | None, message_ids: Sequence[UUID]) -> Answer:
    """Say of each id what became of it, acknowledging what was pending: 200.

    No result depends on its neighbours. The flips, the quota given back and `cleanup_after`
    commit together.
    """
    fields: list[Field] = [len(message_ids), *(message_id.bytes for message_id in message_ids)]
    request = Request(caller, ROUTE, key, request_fingerprint(route=ROUTE, fields=fields))
    return run_once(request, lambda: _acknowledge(caller.id, message_ids), queues=[caller.id])


def _acknowledge(device_id: UUID, message_ids: Sequence[UUID]) -> Effect:
    shard = shard_of_device(device_id)
    usage = queue.usage_lock(shard=shard, device_id=device_id)
    if usage is None:  # the device was removed while its credential was still believed
        raise Unauthenticated
    now = clock.read()
    parameters = {
        "shard": shard,
        "device_id": device_id,
        "message_ids": list(set(message_ids)),
        "now": now,
    }
    known = sql.rows(sql.load(_STATEMENT).replace("{pending}", PENDING_SQL), parameters)
    sizes = [row["freed"] for row in known if row["freed"] is not None]
    if sizes:
        freed = queue.Freed(device_id, count=len(sizes), bytes=sum(sizes))
        give_back(shard=shard, usages=[usage], freed=[freed])
    outcomes = {row["message_id"]: _STATUS[Outcome(row["outcome"])] for row in known}
    return Effect(200, _document(message_ids, outcomes), now)


def _document(message_ids: Sequence[UUID], outcomes: dict[UUID, str]) -> dict[str, Any]:
    return {
        "results": [
            {"message_id": str(message_id), "status": outcomes.get(message_id, "unknown")}
            for message_id in message_ids
        ]
    }
