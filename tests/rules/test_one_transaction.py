"""One durable transaction a request (DESIGN rule 4.1)."""

import inspect
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from types import ModuleType
from uuid import uuid4

import pytest
from django.db import connection

from config.kernel import advisory, database
from config.kernel.database import durable_transaction
from idempotency import services as idempotency
from idempotency.models import Record
from outbox.models import Event
from outbox.services import adding as outbox
from quotas import usage as line
from quotas.models import QueueUsage
from relay.models import Envelope
from tests.client import Party, make_device, make_provisioner, new_key
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import code_of, set_limits, submit_surely
from tests.concurrency.oracle import assert_sound
from tests.conftest import DatabaseClock
from tests.rules.planting import totals

NOW = datetime(2026, 6, 1, tzinfo=UTC)
MANY = 10**6


def _usage() -> QueueUsage:
    return QueueUsage(shard=1, device_id=uuid4())


def _claim() -> idempotency.Claim:
    return idempotency.Claim(shard=1, scope_hash=b"s" * 32, attempt=uuid4())


#: Everything in these modules that changes or locks, called outside a transaction.
OUTSIDE: dict[str, Callable[[], object]] = {
    "quotas.usage.usage_open": lambda: line.usage_open(shard=1, device_id=uuid4()),
    "quotas.usage.usage_lock": lambda: line.usage_lock(shard=1, device_id=uuid4()),
    "quotas.usage.usage_lock_all": lambda: line.usage_lock_all(shard=1, device_ids=[uuid4()]),
    "quotas.usage.usage_lock_free": lambda: line.usage_lock_free(shard=1, device_ids=[uuid4()]),
    "quotas.usage.take_places": lambda: line.take_places(shard=1, lines=[]),
    "quotas.usage.give_back": lambda: line.give_back(shard=1, usages=[], freed=[]),
    "quotas.usage.set_totals": lambda: line.set_totals(usage=_usage(), count=0, size=0),
    "quotas.usage.set_clock": lambda: line.set_clock(usage=_usage(), at=NOW),
    "quotas.usage.close": lambda: line.close(usage=_usage(), now=NOW),
    "quotas.usage.remove": lambda: line.remove(usage=_usage()),
    "idempotency.services.claim": lambda: idempotency.claim(
        scope_hash=b"s" * 32, fingerprint=b"f" * 32
    ),
    "idempotency.services.complete": lambda: idempotency.complete(
        claim=_claim(), status=201, body="", now=NOW
    ),
    "idempotency.services.release": lambda: idempotency.release(claim=_claim()),
    "idempotency.services.prune": lambda: idempotency.prune(shard=1, now=NOW, most=1),
    "outbox.services.events_add": lambda: outbox.events_add(
        topic="wake", shard=1, device_ids=[uuid4()], now=NOW
    ),
    "outbox.services.security_events_add": lambda: outbox.security_events_add(
        kind="x", shard=1, devices={uuid4(): uuid4()}, now=NOW
    ),
    "config.kernel.advisory.hold_until_commit": lambda: advisory.hold_until_commit(
        advisory.AdvisoryLock.POLICY_VERSION
    ),
}
#: Reads, and arithmetic.
HARMLESS = {"quotas.usage.has_room", "idempotency.services.shards_with_due_records"}
#: Known gap, reported; nothing else may join it.


def _functions(module: ModuleType) -> set[str]:
    return {
        f"{module.__name__}.{name}"
        for name, found in inspect.getmembers(module, inspect.isfunction)
        if found.__module__ == module.__name__ and not name.startswith("_")
    }


def test_durable_transaction_refuses_to_nest() -> None:
    with durable_transaction(), pytest.raises(RuntimeError), durable_transaction():
        pass
    assert not connection.in_atomic_block


def test_a_wait_or_a_call_inside_a_transaction_is_refused() -> None:
    database.assert_no_transaction()
    with durable_transaction(), pytest.raises(RuntimeError):
        database.assert_no_transaction()


def test_every_function_that_changes_a_queue_or_a_key_is_listed_here() -> None:
    assert (
        _functions(line) | _functions(idempotency)
        == {name for name in OUTSIDE if name.startswith(("quotas.", "idempotency."))} | HARMLESS
    )


@pytest.mark.parametrize("name", sorted(OUTSIDE))
def test_it_refuses_to_run_outside_a_transaction(name: str) -> None:
    with pytest.raises(RuntimeError, match="inside durable_transaction"):
        OUTSIDE[name]()
    assert Record.objects.count() == Event.objects.count() == QueueUsage.objects.count() == 0


class _Begins:
    """Counts the transactions that begin, and what is written outside one."""

    def __init__(self) -> None:
        self.outside: list[str] = []

    def __call__(self, execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        writes = sql.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE"))
        if (writes or "FOR NO KEY UPDATE" in sql) and not connection.in_atomic_block:
            self.outside.append(sql)
        return execute(sql, params, many, context)


def _batch(relay: InsideClient, *recipients: Party) -> int:
    entries = [
        {
            "recipient_device_id": str(recipient.id),
            "message_id": str(uuid4()),
            "protocol_version": 1,
            "ciphertext": "eHh4",
        }
        for recipient in recipients
    ]
    options = {"json": {"envelopes": entries}, "headers": {"Idempotency-Key": new_key()}}
    return relay.call("POST", "/v1/envelopes/batch", make_device(), **options).status_code


def _xmins(*tables: str) -> set[str]:
    """Which transactions wrote the rows that are there."""
    found: set[str] = set()
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"SELECT DISTINCT xmin::text FROM {table}")
            found |= {name for (name,) in cursor.fetchall()}
    return found


def test_a_submit_is_one_transaction(inside: InsideClient) -> None:
    """Every row that a submit leaves was written by one and the same transaction."""
    recipient, outside = make_device(), _Begins()
    with connection.execute_wrapper(outside):
        submit_surely(inside, make_device(), recipient)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT xmin::text FROM quotas_queueusage WHERE device_id = %s", [recipient.id]
        )
        [(usage,)] = cursor.fetchall()
    rows = _xmins("relay_envelope", "relay_body", "idempotency_record", "outbox_event")
    assert rows == {usage}
    assert outside.outside == []


def test_a_batch_and_an_acknowledgement_are_one_transaction_each(inside: InsideClient) -> None:
    outside = _Begins()
    recipients = [make_device() for _ in range(5)]  # in several shards
    with connection.execute_wrapper(outside):
        assert _batch(inside, *recipients, *recipients) == 200
        assert len(_xmins("relay_envelope", "relay_body", "outbox_event")) == 1
        ids = [each["message_id"] for each in inside.walk(recipients[0])]
        inside.acknowledge(recipients[0], ids, key=new_key())
    assert outside.outside == []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT usage.xmin::text, envelope.xmin::text FROM quotas_queueusage AS usage "
            "JOIN relay_envelope AS envelope USING (device_id) WHERE device_id = %s",
            [recipients[0].id],
        )
        assert len({name for row in cursor.fetchall() for name in row}) == 1


# --- Refusals ----------------------------------------------------------------------------------


@pytest.fixture
def parties(inside: InsideClient) -> dict[str, Party]:
    """A sender, a healthy recipient, a full one, and a disabled one."""
    made = {name: make_device() for name in ("sender", "healthy", "full", "disabled")}
    set_limits(pending_count=10)
    for _ in range(10):
        submit_surely(inside, made["sender"], made["full"])
    provisioner = make_provisioner()
    path = f"/v1/devices/{made['disabled'].id}"
    assert inside.call("DELETE", path, provisioner).status_code == 202
    return made


TAKEN = uuid4()
REFUSALS: dict[str, dict[str, object]] = {
    "RECIPIENT_UNKNOWN": {"recipient": uuid4()},
    "RECIPIENT_UNKNOWN (disabled)": {"recipient": "disabled"},
    "RECIPIENT_QUOTA_EXCEEDED": {"recipient": "full"},
    "MESSAGE_ID_CONFLICT": {"message_id": TAKEN, "ciphertext": b"another"},
    "ENVELOPE_TOO_LARGE": {"ciphertext": b"x" * 65_537},
    "PROTOCOL_VERSION_UNSUPPORTED": {"protocol_version": 2},
    "TTL_OUT_OF_RANGE": {"ttl_seconds": 59},
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_leaves_no_key_behind(
    inside: InsideClient, parties: dict[str, Party], name: str
) -> None:
    sender, healthy, key = parties["sender"], parties["healthy"], new_key()
    inside.submit(sender, healthy, message_id=TAKEN)
    keys, envelopes = Record.objects.count(), Envelope.objects.count()
    call = {"recipient": healthy, **REFUSALS[name]}
    recipient = call.pop("recipient")
    recipient = parties[recipient] if isinstance(recipient, str) else recipient
    for _ in range(2):  # refused once more under the same key
        answer = inside.submit(sender, recipient, key=key, **call)  # type: ignore[arg-type]
        assert code_of(answer) == name.split(maxsplit=1)[0]
    assert Record.objects.count() == keys
    assert Envelope.objects.count() == envelopes
    assert_sound()
    # The same key takes any other request.
    assert inside.submit(sender, healthy, key=key).status_code == 201


def test_a_refused_batch_leaves_no_key_and_an_accepted_one_leaves_one(
    inside: InsideClient, parties: dict[str, Party]
) -> None:
    keys = Record.objects.count()
    assert _batch(inside, parties["full"], parties["disabled"]) == 422
    assert Record.objects.count() == keys
    assert _batch(inside, parties["full"], parties["healthy"]) == 200
    assert Record.objects.count() == keys + 1
    assert_sound()


def test_a_reused_key_leaves_the_first_ones_record_as_it_was(inside: InsideClient) -> None:
    sender, recipient, key = make_device(), make_device(), new_key()
    first = inside.submit(sender, recipient, message_id=TAKEN, key=key)
    before = Record.objects.values_list().get()
    assert code_of(inside.submit(sender, recipient, key=key)) == "IDEMPOTENCY_KEY_REUSED"
    assert Record.objects.values_list().get() == before
    again = inside.submit(sender, recipient, message_id=TAKEN, key=key)
    assert (again.status_code, again.text) == (201, first.text)


def test_a_bug_rolls_everything_back(
    inside: InsideClient, clock: DatabaseClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure after the last write but one: no key, no envelope, no place, no event."""
    clock.freeze("2026-06-01T00:00:00.000000Z")
    recipient, key, message_id = make_device(), new_key(), uuid4()

    def fail_at_the_outbox(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        if 'INTO "outbox_event"' in sql:
            raise ValueError("a bug")
        return execute(sql, params, many, context)

    sender = make_device()
    with connection.execute_wrapper(fail_at_the_outbox):
        answer = inside.submit(sender, recipient, key=key, message_id=message_id)
    assert (answer.status_code, code_of(answer)) == (500, "INTERNAL")
    assert not Record.objects.exists()
    assert not Envelope.objects.exists()
    assert not Event.objects.exists()
    assert totals(recipient.id) == (0, 0)
    assert QueueUsage.objects.get(device_id=recipient.id).next_seq == 1
    again = inside.submit(sender, recipient, key=key, message_id=message_id)
    assert (again.status_code, again.json()["accepted_at"]) == (201, "2026-06-01T00:00:00.000000Z")


# --- No network call inside --------------------------------------------------------------------


def test_no_network_call_is_made_inside_a_transaction(
    inside: InsideClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis and everything else that Python connects to; PostgreSQL's own is in C."""
    calls: list[bool] = []

    def watch(name: str) -> None:
        original = getattr(socket.socket, name)

        def watched(self, *args):  # type: ignore[no-untyped-def]
            calls.append(connection.in_atomic_block)
            return original(self, *args)

        monkeypatch.setattr(socket.socket, name, watched)

    for name in ("connect", "send", "sendall", "recv", "recv_into"):
        watch(name)
    set_limits(actor_rate=MANY, address_rate=MANY)
    sender, recipient, provisioner = make_device(), make_device(), make_provisioner()
    message_id = inside.submit(sender, recipient).json()["message_id"]
    assert _batch(inside, recipient, recipient) == 200
    inside.submit(sender, recipient, b"other", message_id=message_id)
    inside.acknowledge(recipient, [message_id], key=new_key())
    inside.call("DELETE", f"/v1/devices/{recipient.id}", provisioner)
    assert len(calls) > 0  # the rate limiter asked Redis
    assert not any(calls)
