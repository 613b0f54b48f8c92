"""How many statements each way through the house costs (DESIGN section 8): reviewed baselines.

Fewer is fine. More needs a reason, and a reviewer who agrees to the new number.
"""

from collections.abc import Callable
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from config.kernel.shards import shard_of_device
from relay.services import submit
from relay.services.submit_at_once import submit_at_once
from tests import factories
from tests.client import Party, make_device, make_provisioner, new_key
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import set_limits

#: DESIGN section 8 gives the first three: submit 9, pull 2, ack 6, whatever the batch size.
MOST = {
    "submit": 9,
    "batch": 10,  # one more bounds the wait for locks while it holds those of others
    "pull": 2,
    "acknowledge": 6,
    "acknowledge without a key": 4,
    "replay": 2,
    "duplicate": 5,
    "conflict": 6,
    "unknown recipient": 5,
    "full queue": 6,
    "device": 2,
    "device_put": 5,
    "device_disable": 4,
}
_TRANSACTION = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK")


@pytest.fixture(autouse=True)
def _caches_stay_warm(settings) -> None:  # type: ignore[no-untyped-def]
    settings.RELAY_BELIEVE_SECONDS = 600


def _statements(call: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        call()
    sent = [query["sql"] for query in captured.captured_queries]
    return [each for each in sent if not each.startswith(_TRANSACTION)]


def _batch(relay: InsideClient, sender: Party, recipients: list[Party]) -> Callable[[], object]:
    envelopes = [
        {
            "recipient_device_id": str(device.id),
            "message_id": str(uuid4()),
            "protocol_version": 1,
            "ciphertext": "eHh4",
        }
        for device in recipients
    ]
    options = {"json": {"envelopes": envelopes}, "headers": {"Idempotency-Key": new_key()}}
    return lambda: relay.call("POST", "/v1/envelopes/batch", sender, **options)


@pytest.fixture
def parties(inside: InsideClient) -> tuple[Party, Party]:
    """A sender and a recipient whose credentials are believed already."""
    sender, recipient = make_device(), make_device()
    inside.submit(sender, recipient)
    inside.pull(recipient)
    return sender, recipient


def _check(name: str, call: Callable[[], object]) -> None:
    statements = _statements(call)
    assert 0 < len(statements) <= MOST[name], "\n".join(statements)


def test_submit(inside: InsideClient, parties: tuple[Party, Party]) -> None:
    sender, recipient = parties
    message_id, key = uuid4(), new_key()

    def submit(ciphertext: bytes = b"x", recipient: object = recipient, **options: object):  # type: ignore[no-untyped-def]
        return lambda: inside.submit(sender, recipient, ciphertext, **options)  # type: ignore[arg-type]

    _check("submit", submit(message_id=message_id, key=key))
    _check("replay", submit(message_id=message_id, key=key))
    _check("duplicate", submit(message_id=message_id))
    _check("conflict", submit(b"y", message_id=message_id))
    _check("unknown recipient", submit(recipient=uuid4()))
    set_limits(pending_count=10)
    for _ in range(8):
        submit()()
    _check("full queue", submit())


def test_a_submit_that_is_nothing_special_is_one_statement(parties: tuple[Party, Party]) -> None:
    sender, recipient = parties
    with pytest.MonkeyPatch.context() as patch, InsideClient() as relay:
        patch.setattr(submit, "submit_at_once", submit_at_once)  # put back
        [statement] = _statements(lambda: relay.submit(sender, recipient))
    assert "relay_submit_at_once" in statement


@pytest.mark.parametrize("size", [1, 20, 100])
def test_a_batch_to_one_queue_costs_a_statement_more_than_one_envelope(
    inside: InsideClient, parties: tuple[Party, Party], size: int
) -> None:
    sender, recipient = parties
    _check("batch", _batch(inside, sender, [recipient] * size))


@pytest.mark.parametrize("devices", [2, 20])
def test_a_batch_to_many_queues_of_one_shard_costs_a_statement_more_than_one_envelope(
    inside: InsideClient, parties: tuple[Party, Party], devices: int
) -> None:
    sender, recipient = parties
    shard, found = shard_of_device(recipient.id), [recipient]
    while len(found) < devices:
        device = make_device()
        if shard_of_device(device.id) == shard:
            found.append(device)
    _check("batch", _batch(inside, sender, found))


@pytest.mark.parametrize("count", [1, 100])
def test_pull_and_acknowledge(
    inside: InsideClient, parties: tuple[Party, Party], count: int
) -> None:
    _, recipient = parties
    for _ in range(count):
        factories.store(recipient.id)
    cursor = inside.pull(recipient, limit=1).json()["next_cursor"]
    _check("pull", lambda: inside.pull(recipient, limit=100))
    _check("pull", lambda: inside.pull(recipient, limit=100, cursor=cursor))
    page = inside.pull(recipient, limit=count).json()
    ids = [envelope["message_id"] for envelope in page["envelopes"]]
    assert len(ids) == count
    _check("acknowledge", lambda: inside.acknowledge(recipient, ids, key=new_key()))
    _check("acknowledge without a key", lambda: inside.acknowledge(recipient, ids))
    _check("pull", lambda: inside.pull(recipient))


def test_devices(inside: InsideClient, parties: tuple[Party, Party]) -> None:
    _, recipient = parties
    provisioner, path = make_provisioner(), f"/v1/devices/{recipient.id}"
    inside.call("PUT", f"/v1/devices/{uuid4()}", provisioner, json={"token_sha256": "ab" * 32})
    _check("device", lambda: inside.device(recipient))
    put = {"json": {"token_sha256": "cd" * 32}}
    _check("device_put", lambda: inside.call("PUT", path, provisioner, **put))
    _check("device_disable", lambda: inside.call("DELETE", path, provisioner))
