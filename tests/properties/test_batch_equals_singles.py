"""A batch gives, entry for entry, what its entries give when they are sent one by one.

Two sets of twin queues are filled alike. The entries go to the one set as a batch, to the
other one after another; answers and queues must then be the same but for the times.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from config.kernel.shards import shard_of_device
from quotas.models import QueueUsage
from relay.models import Body, Envelope
from relay.services.devices import device_disable_by_operator
from tests import factories
from tests.api.helpers import envelope_for, post, query, set_limits
from tests.client import Party, RelayClient, base64_of, make_device
from tests.properties.batches import results, send, verdicts
from tests.properties.profiles import examples, fuse

MIB = 2**20
LIMITS = {"envelope_bytes": 1024, "pending_count": 10, "pending_bytes": MIB}
CIPHERTEXTS = [b"a", b"b", b"c" * 1023, b"d" * 1024]


@dataclass(frozen=True)
class Filling:
    """What a queue holds before: how much still fits, and how much of it is due."""

    free_places: int
    free_bytes: int
    due: int
    biggest_last: bool


@dataclass(frozen=True)
class Entry:
    """One entry, its recipient and message id by number."""

    recipient: int
    message: int
    ciphertext: bytes
    oddity: dict[str, Any]

    def document(self, queues: list[UUID], messages: list[UUID]) -> dict[str, Any]:
        """The entry for one of the twin sets."""
        document = envelope_for(
            queues[self.recipient],
            message_id=str(messages[self.message]),
            ciphertext=base64_of(self.ciphertext),
        )
        return {**document, **self.oddity}


FILLINGS = st.builds(
    Filling,
    free_places=st.sampled_from([1, 2, 3, 0, 9]),
    free_bytes=st.sampled_from([1025, 2047, 1, 1024, 0, MIB - 10]),
    due=st.sampled_from([0, 0, 1, 2]),
    biggest_last=st.booleans(),  # what is due is at the end
)
#: Now and then an entry is out of policy, or its TTL is at an edge.
ODDITIES: list[dict[str, Any]] = [
    *[{}] * 7,
    {"protocol_version": 2},
    {"ttl_seconds": 59},
    {"ttl_seconds": 60},
    {"ttl_seconds": 604_801},
    {"ciphertext": base64_of(b"e" * 1025)},
]
#: Queues 0 and 1 are alive, 2 is a device that was disabled, 3 one that never was.
ENTRIES = st.builds(
    Entry,
    recipient=st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3]),
    message=st.integers(0, 4),
    ciphertext=st.sampled_from(CIPHERTEXTS),
    oddity=st.sampled_from(ODDITIES),
)


def _fill(filling: Filling) -> UUID:
    """A device's queue, filled so."""
    device_id = make_device().id
    held = LIMITS["pending_count"] - filling.free_places
    sizes = [MIB - filling.free_bytes - (held - 1), *[1] * (held - 1)]
    if filling.biggest_last:
        sizes.reverse()
    now = factories.now()
    rows = [
        factories.EnvelopeFactory.build(
            device_id=device_id,
            seq=index + 1,
            size=size,
            accepted_at=now - timedelta(days=3),
            expires_at=now + timedelta(days=-1 if index >= held - filling.due else 1),
        )
        for index, size in enumerate(sizes)
    ]
    Envelope.objects.bulk_create(rows)
    Body.objects.bulk_create(
        Body(shard=row.shard, device_id=device_id, seq=row.seq, ciphertext=b"x") for row in rows
    )
    QueueUsage.objects.filter(shard=rows[0].shard, device_id=device_id).update(
        pending_count=held, pending_bytes=sum(sizes), next_seq=held + 1
    )
    return device_id


def _queues(fillings: list[Filling]) -> list[UUID]:
    disabled = make_device().id
    device_disable_by_operator(device_id=disabled)
    return [*map(_fill, fillings), disabled, uuid4()]


def _singles(relay: RelayClient, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of single submits, written as the results of a batch."""
    sender, found = make_device(), []
    for entry in entries:
        answer = post(relay, sender, entry)
        document = answer.json()
        if answer.status_code >= 400:
            error = {name: document[name] for name in _ERROR if name in document}
            result = {"status": "rejected", "error": error}
        else:
            result = {"status": _STATUS[answer.status_code], **document}
        names = ("message_id", "recipient_device_id")
        found.append({**{name: entry[name] for name in names}, **result})
    return found


_ERROR = ("code", "retryable", "retry_after")
_STATUS = {201: "accepted", 200: "duplicate"}


def _comparable(found: list[dict[str, Any]], queues: list[UUID]) -> list[dict[str, Any]]:
    """Results without their times and jitter; recipients by number."""
    compared = []
    for result in found:
        each = {name: value for name, value in result.items() if not name.endswith("_at")}
        each["recipient_device_id"] = queues.index(UUID(each["recipient_device_id"]))
        if "retry_after" in each.get("error", {}):
            each["error"] = {**each["error"], "retry_after": "some"}
        compared.append(each)
    return compared


def _times(result: dict[str, Any]) -> tuple[str, str]:
    return result.get("accepted_at", ""), result.get("expires_at", "")


def _times_hold(found: list[dict[str, Any]]) -> bool:
    """In each queue times rise from entry to entry, and a duplicate has the first one's."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    latest: dict[str, str] = {}
    for result in found:
        queue, times = result["recipient_device_id"], _times(result)
        if result["status"] == "accepted":
            if times[0] <= latest.get(queue, ""):
                return False
            latest[queue] = times[0]
            first[(queue, result["message_id"])] = times
        elif result["status"] == "duplicate" and times != first[(queue, result["message_id"])]:
            return False
    return True


_HELD = """
SELECT seq, message_id, size, protocol_version, extract(epoch FROM expires_at - accepted_at),
       extract(epoch FROM receipt_until - accepted_at)
  FROM relay_envelope
 WHERE shard = %s AND device_id = %s AND outcome = 'pending' AND expires_at > relay_now()
 ORDER BY seq
"""
_SUMS = """
SELECT count(*), coalesce(sum(size), 0) FROM relay_envelope
 WHERE shard = %s AND device_id = %s AND outcome = 'pending'
"""


def _state(device_id: UUID, messages: list[UUID]) -> Any:
    """A queue: its usage row less what is due, where its line is, and what it holds."""
    where = (shard_of_device(device_id), device_id)
    usage = QueueUsage.objects.filter(shard=where[0], device_id=device_id).first()
    if usage is None:
        return None
    assert (usage.pending_count, usage.pending_bytes) == query(_SUMS, *where)[0]
    held = query(_HELD, *where)
    # What filled the queue has ids of its own in each twin.
    rows = [(row[0], row[1] if row[1] in messages else None, *row[2:]) for row in held]
    return usage.next_seq, usage.closed_at is not None, rows


@fuse
@examples(60)
@given(
    fillings=st.lists(FILLINGS, min_size=2, max_size=2),
    entries=st.lists(ENTRIES, min_size=1, max_size=16),
)
def test_a_batch_equals_its_entries_sent_one_after_another(
    relay: RelayClient, fillings: list[Filling], entries: list[Entry]
) -> None:
    set_limits(**LIMITS)
    messages = [uuid4() for _ in range(5)]
    twins = _queues(fillings), _queues(fillings)
    together, apart = ([entry.document(each, messages) for entry in entries] for each in twins)

    singly = _singles(relay, apart)
    stored = any(result["status"] != "rejected" for result in singly)
    batched = results(send(relay, make_device(), together), 200 if stored else 422)

    assert _comparable(batched, twins[0]) == _comparable(singly, twins[1])
    assert _times_hold(batched)
    assert _times_hold(singly)
    for one, other in zip(*twins, strict=True):
        assert _state(one, messages) == _state(other, messages)


def _two_devices_of_one_shard() -> list[Party]:
    by_shard: dict[int, list[Party]] = {}
    while True:
        device = make_device()
        sharing = by_shard.setdefault(shard_of_device(device.id), [])
        sharing.append(device)
        if len(sharing) == 2:
            return sharing


def _lagging(device: Party) -> None:
    """500 envelopes, all due, that no sweep came for."""
    due = {"accepted_at": factories.now() - timedelta(days=2), "size": 10}
    due["expires_at"] = factories.now() - timedelta(days=1)
    Envelope.objects.bulk_create(
        factories.EnvelopeFactory.build(device_id=device.id, seq=seq + 1, **due)
        for seq in range(500)
    )
    QueueUsage.objects.filter(device_id=device.id).update(
        pending_count=500, pending_bytes=5_000, next_seq=501
    )


def test_a_lagging_sweep_makes_no_queue_refuse_a_batch_that_would_take_a_single(
    relay: RelayClient,
) -> None:
    set_limits(pending_count=500)
    devices = _two_devices_of_one_shard()
    for device in devices:
        _lagging(device)
    batch = [envelope_for(device) for device in devices]
    assert verdicts(send(relay, make_device(), batch)) == ["accepted"] * 2
