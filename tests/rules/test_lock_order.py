"""One lock order (DESIGN rule 4.2): idempotency record → usage rows → envelopes → outbox → audit.

Seen twice: in the statements that each way through the house sends, and from outside, by what
is locked while it waits.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
from django.db import connection
from django.test.utils import CaptureQueriesContext

from config.kernel.shards import shard_of_device
from tests.client import Party, RelayClient, make_device, make_provisioner, new_key
from tests.concurrency.crowd import Background
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import set_limits, submit_surely, sweep
from tests.concurrency.outside import connect, usage_row_locked, waiting_for_a_lock
from tests.conftest import DatabaseClock

ORDER = [
    "idempotency_record",
    "quotas_queueusage",
    "relay_envelope",
    "relay_body",
    "outbox_event",
    "adminui_auditentry",
]
_TABLE = rf"\"?\b({'|'.join(ORDER)})\b"
_TAKES = re.compile(
    rf"\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+{_TABLE}|"
    rf"\bFROM\s+{_TABLE}(?:(?!\bFROM\b).)*?\bFOR\s+(?:NO\s+KEY\s+)?UPDATE\b",
    re.IGNORECASE | re.DOTALL,
)


def locks_taken(statements: list[str]) -> list[str]:
    """Tables by the first time that a transaction locks or writes a row of theirs."""
    seen: list[str] = []
    for statement in statements:
        for match in _TAKES.finditer(re.sub(r"--[^\n]*", "", statement)):
            table = next(group for group in match.groups() if group)
            if table not in seen:
                seen.append(table)
    return seen


def _transactions(statements: list[str]) -> list[list[str]]:
    """The statements by transaction."""
    found: list[list[str]] = [[]]
    for statement in statements:
        if statement.startswith(("BEGIN", "COMMIT", "ROLLBACK")):
            found.append([])
        else:
            found[-1].append(statement)
    return [transaction for transaction in found if transaction]


def _capture(call: Callable[[], object]) -> list[list[str]]:
    with CaptureQueriesContext(connection) as captured:
        call()
    return _transactions([query["sql"] for query in captured.captured_queries])


def _in_order(tables: list[str]) -> bool:
    return tables == sorted(tables, key=ORDER.index)


def _check(call: Callable[[], object], *, at_least: list[str]) -> list[str]:
    """Every transaction of the call keeps the order; together they touch `at_least`."""
    touched: list[str] = []
    for transaction in _capture(call):
        tables = locks_taken(transaction)
        assert _in_order(tables), (tables, transaction)
        touched += tables
    assert set(at_least) <= set(touched)
    return touched


def test_the_check_knows_the_order_from_the_statements() -> None:
    assert locks_taken(
        ['UPDATE "relay_envelope" SET x = 1', "SELECT 1 FROM quotas_queueusage FOR NO KEY UPDATE"]
    ) == ["relay_envelope", "quotas_queueusage"]
    assert not _in_order(["relay_envelope", "quotas_queueusage"])
    assert locks_taken(["SELECT 1 FROM relay_envelope"]) == []
    statement = (
        "WITH a AS (SELECT seq FROM relay_envelope LIMIT 1 FOR UPDATE SKIP LOCKED) "
        "DELETE FROM relay_body USING a"
    )
    assert locks_taken([statement]) == ["relay_envelope", "relay_body"]


KEY, USAGE, ENVELOPE, BODY, OUTBOX = ORDER[:5]


def _batch(
    relay: RelayClient, entries: list[tuple[Party, UUID, str]], sender: Party | None = None
) -> int:
    envelopes = [
        {
            "recipient_device_id": str(device.id),
            "message_id": str(message_id),
            "protocol_version": 1,
            "ciphertext": ciphertext,
        }
        for device, message_id, ciphertext in entries
    ]
    options = {"json": {"envelopes": envelopes}, "headers": {"Idempotency-Key": new_key()}}
    return relay.call("POST", "/v1/envelopes/batch", sender or make_device(), **options).status_code


def test_submit_in_all_its_outcomes(inside: InsideClient, clock: DatabaseClock) -> None:
    sender, recipient, message_id, key = make_device(), make_device(), uuid4(), new_key()

    def submit(ciphertext: bytes = b"x", **options: object) -> Callable[[], object]:
        return lambda: inside.submit(sender, recipient, ciphertext, **options)  # type: ignore[arg-type]

    accepted = _check(
        submit(message_id=message_id, key=key), at_least=[KEY, USAGE, ENVELOPE, BODY, OUTBOX]
    )
    assert accepted == [KEY, USAGE, ENVELOPE, BODY, OUTBOX]
    _check(submit(message_id=message_id, key=key), at_least=[KEY])  # replay
    _check(submit(message_id=message_id), at_least=[KEY, USAGE])  # duplicate
    _check(submit(b"other", message_id=message_id), at_least=[KEY, USAGE, OUTBOX])  # conflict
    set_limits(pending_count=10)
    for _ in range(10):
        submit(ttl_seconds=60)()
    _check(submit(), at_least=[KEY, USAGE])  # full
    clock.shift(timedelta(seconds=61))
    _check(submit(), at_least=[KEY, USAGE, ENVELOPE, BODY, OUTBOX])  # after an inline expiry


def test_a_batch_locks_queues_by_shard_and_device(inside: InsideClient) -> None:
    sender, devices = make_device(), [make_device() for _ in range(8)]
    entries = [(device, uuid4(), "eHh4") for device in devices]
    statements = [
        statement
        for transaction in _capture(lambda: _batch(inside, entries, sender))
        for statement in transaction
        if "quotas_queueusage" in statement and "FOR NO KEY UPDATE" in statement
    ]
    shards = [int(re.search(r"\"?shard\"? = (\d+)", each).group(1)) for each in statements]  # type: ignore[union-attr]
    assert shards == sorted({shard_of_device(device.id) for device in devices})
    assert all(re.search(r"ORDER BY .*device_id", each) for each in statements)
    _check(lambda: _batch(inside, entries), at_least=[KEY, USAGE])


def test_a_batch_with_a_conflict_tells_the_outbox_last(inside: InsideClient) -> None:
    device, taken = make_device(), uuid4()
    assert _batch(inside, [(device, taken, "eHh4")]) == 200
    entries = [(device, taken, "eXl5"), (device, uuid4(), "eHh4")]
    _check(lambda: _batch(inside, entries), at_least=[KEY, USAGE, ENVELOPE, BODY, OUTBOX])


def test_acknowledge_and_disable(inside: InsideClient) -> None:
    recipient, provisioner = make_device(), make_provisioner()
    message_id = submit_surely(inside, make_device(), recipient).json()["message_id"]
    acks = _check(
        lambda: inside.acknowledge(recipient, [message_id], key=new_key()),
        at_least=[KEY, USAGE, ENVELOPE],
    )
    assert acks == [KEY, USAGE, ENVELOPE]
    disables = _check(
        lambda: inside.call("DELETE", f"/v1/devices/{recipient.id}", provisioner),
        at_least=[USAGE],
    )
    assert disables == [USAGE]


def test_every_sweep(inside: InsideClient, clock: DatabaseClock) -> None:
    provisioner, sender = make_provisioner(), make_device()
    due, closed, acked = make_device(), make_device(), make_device()
    submit_surely(inside, sender, due, ttl_seconds=60)
    submit_surely(inside, sender, closed)
    message_id = submit_surely(inside, sender, acked).json()["message_id"]
    inside.acknowledge(acked, [message_id])
    inside.call("DELETE", f"/v1/devices/{closed.id}", provisioner)
    clock.shift(timedelta(seconds=61))
    touched = _check_sweep()
    clock.shift(timedelta(days=9))
    touched |= _check_sweep() | _check_sweep()
    assert touched == {KEY, USAGE, ENVELOPE, BODY}


def _check_sweep() -> set[str]:
    touched: set[str] = set()
    transactions = _capture(sweep)
    for transaction in transactions:
        tables = locks_taken(transaction)
        assert _in_order(tables), transaction
        touched |= set(tables)
    _skip_what_others_hold([each for transaction in transactions for each in transaction])
    return touched


def _skip_what_others_hold(statements: list[str]) -> None:
    """A sweep waits for nobody: every lock it takes, it takes with SKIP LOCKED."""
    locking = [
        each
        for each in statements
        if re.search(r"\bFOR (NO KEY )?UPDATE\b", each) and any(table in each for table in ORDER)
    ]
    assert all("SKIP LOCKED" in each for each in locking)


# --- From outside ------------------------------------------------------------------------------


def _is_free(statement: str, *parameters: object) -> bool:
    """Whether this lock can be had at once."""
    with connect() as look:
        try:
            look.execute(f"{statement} FOR UPDATE NOWAIT", parameters)
        except psycopg.errors.LockNotAvailable:
            return False
        finally:
            look.rollback()
    return True


def test_an_acknowledgement_holds_no_envelope_while_it_waits_for_its_queue(
    relay: RelayClient,
) -> None:
    sender, recipient = make_device(), make_device()
    message_id = submit_surely(relay, sender, recipient).json()["message_id"]
    with usage_row_locked(recipient.id) as let_go:
        waiting = Background(lambda: relay.acknowledge(recipient, [message_id]))
        waiting_for_a_lock(1)
        assert _is_free("SELECT 1 FROM relay_envelope WHERE message_id = %s", message_id)
        let_go()
    assert waiting.result().status_code == 200


def test_a_submit_holds_its_key_while_it_waits_for_its_queue(relay: RelayClient) -> None:
    """Key first: seen by the second one with that key, which waits for the first."""
    sender, recipient, key, message_id = make_device(), make_device(), new_key(), uuid4()

    def submit():  # type: ignore[no-untyped-def]
        return relay.submit(sender, recipient, message_id=message_id, key=key)

    with usage_row_locked(recipient.id) as let_go:
        first = Background(submit)
        waiting_for_a_lock(1)
        second = Background(submit)
        waiting_for_a_lock(2)
        with connect() as look:
            kinds = look.execute(
                "SELECT wait_event FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchall()
        let_go()
    # Both wait for a transaction: one for ours, the other for the first one.
    assert sorted(kinds) == [("transactionid",), ("transactionid",)]
    assert [first.result().status_code, second.result().status_code] == [201, 201]


def test_sweeps_pass_by_a_queue_that_somebody_holds(
    inside: InsideClient, clock: DatabaseClock
) -> None:
    held, free = make_device(), make_device()
    for device in (held, free):
        submit_surely(inside, make_device(), device, ttl_seconds=60)
    clock.shift(timedelta(seconds=61))
    with usage_row_locked(held.id):
        sweep()
        with connect() as look:
            rows = look.execute("SELECT device_id, outcome FROM relay_envelope").fetchall()
        assert dict(rows) == {held.id: "pending", free.id: "expired"}
    sweep()
    with connect() as look:
        rows = look.execute("SELECT outcome FROM relay_envelope").fetchall()
    assert rows == [("expired",), ("expired",)]
