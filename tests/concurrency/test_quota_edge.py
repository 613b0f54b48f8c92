"""100 submits at one moment against a nearly full queue (FAULTS 17)."""

from uuid import uuid4

import httpx
import pytest

from quotas.models import QueueUsage
from relay.models import Envelope
from tests.client import Party, RelayClient, base64_of, make_device, new_key
from tests.concurrency.crowd import together
from tests.concurrency.loads import set_limits, submit_surely
from tests.concurrency.oracle import Journal, assert_sound

SIZE = 21_000
LIMIT = 50
#: Exactly 50 × 21,000 bytes, and over the 1 MiB that is the least an admin may set.
LIMIT_BYTES = 1_050_000
CROWD = 100


def _fill(relay: RelayClient, recipient: Party, envelopes: int, journal: Journal) -> None:
    """So many envelopes, in one batch."""
    ids, key = [uuid4() for _ in range(envelopes)], new_key()
    entries = [
        {
            "recipient_device_id": str(recipient.id),
            "message_id": str(message_id),
            "protocol_version": 1,
            "ciphertext": base64_of(b"f" * SIZE),
        }
        for message_id in ids
    ]
    if entries:
        options = {"json": {"envelopes": entries}, "headers": {"Idempotency-Key": key}}
        answer = relay.call("POST", "/v1/envelopes/batch", make_device(), **options)
        assert {result["status"] for result in answer.json()["results"]} == {"accepted"}
    for message_id in ids:
        journal.add(recipient.id, message_id, key, "in a batch")


def _rush(
    relay: RelayClient, recipient: Party, size: int, journal: Journal
) -> list[httpx.Response]:
    sender = make_device()
    ids = [uuid4() for _ in range(CROWD)]

    def one(message_id):  # type: ignore[no-untyped-def]
        body = b"r" * size
        return lambda: submit_surely(
            relay, sender, recipient, body, message_id=message_id, journal=journal
        )

    return together([one(message_id) for message_id in ids])


def _shape(refusal: httpx.Response) -> tuple[object, ...]:
    """Everything of a refusal that must not differ from one to the other."""
    problem = refusal.json()
    assert 30 <= problem["retry_after"] <= 60
    assert refusal.headers["Retry-After"] == str(problem["retry_after"])
    del problem["retry_after"], problem["request_id"]
    headers = set(refusal.headers) - {"date"}
    return (refusal.status_code, tuple(sorted(problem.items())), tuple(sorted(headers)))


def _check(answers: list[httpx.Response], *, accepted: int) -> None:
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [201] * accepted + [429] * (CROWD - accepted)
    refusals = {_shape(answer) for answer in answers if answer.status_code == 429}
    assert len(refusals) == 1
    [(_, members, _)] = refusals
    assert dict(members) == {
        "type": "/api/errors#recipient-quota-exceeded",
        "title": "The recipient's queue is full",
        "status": 429,
        "code": "RECIPIENT_QUOTA_EXCEEDED",
        "detail": "The recipient's queue takes no more for now.",
        "retryable": True,
    }


@pytest.mark.parametrize("edge", ["count", "bytes"])
@pytest.mark.parametrize(
    ("held", "accepted"), [(0, 50), (49, 1), (50, 0), (51, 0)], ids=["empty", "-1", "at", "+1"]
)
def test_a_crowd_at_the_edge_gets_exactly_the_room_there_is(
    relay: RelayClient, edge: str, held: int, accepted: int
) -> None:
    journal = Journal()
    recipient, neighbour = make_device(), make_device()
    _fill(relay, neighbour, 1, journal)
    _fill(relay, recipient, held, journal)
    if edge == "count":
        set_limits(pending_count=LIMIT)
    else:
        set_limits(pending_bytes=LIMIT_BYTES)
    _check(_rush(relay, recipient, SIZE, journal), accepted=accepted)

    stored = held + accepted
    usage = QueueUsage.objects.get(device_id=recipient.id)
    assert (usage.pending_count, usage.pending_bytes) == (stored, stored * SIZE)
    lines = Envelope.objects.filter(device_id=recipient.id).order_by("seq")
    assert list(lines.values_list("seq", flat=True)) == list(range(1, stored + 1))
    assert_sound(journal)

    beside = QueueUsage.objects.get(device_id=neighbour.id)
    assert (beside.pending_count, beside.pending_bytes, beside.next_seq) == (1, SIZE, 2)
    assert submit_surely(relay, make_device(), neighbour).status_code == 201


@pytest.mark.parametrize(("size", "accepted"), [(99, 1), (100, 1), (101, 0)])
def test_the_edge_by_bytes_is_exact_to_the_byte(
    relay: RelayClient, size: int, accepted: int
) -> None:
    journal = Journal()
    recipient = make_device()
    _fill(relay, recipient, 50, journal)
    set_limits(pending_bytes=LIMIT_BYTES + 100)
    _check(_rush(relay, recipient, size, journal), accepted=accepted)
    usage = QueueUsage.objects.get(device_id=recipient.id)
    assert usage.pending_bytes == LIMIT_BYTES + accepted * size
    assert_sound(journal)
