"""Every statement that locks or changes a hot table names one shard (DESIGN rule 4.3)."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection

from quotas import usage as line
from relay.services.quota_audit import quota_audit
from tests.client import make_device, make_provisioner, new_key
from tests.concurrency.inside import InsideClient
from tests.concurrency.loads import set_limits, submit_surely, sweep
from tests.conftest import PROJECT, DatabaseClock
from tests.rules.statement_guard import GUARD, StatementGuard, is_watched, violations_of

NO_SHARD = "names no shard by equality"

GOOD = [
    ('SELECT "shard" FROM "quotas_queueusage" WHERE ("device_id" = %s AND "shard" = %s) '
     'FOR NO KEY UPDATE OF "quotas_queueusage"', ["d", 3]),
    ('UPDATE "relay_envelope" SET "outcome" = %s WHERE ("relay_envelope"."shard" = %s)', ["x", 3]),
    ("UPDATE relay_envelope AS e SET outcome = 'x' FROM due WHERE e.shard = %(shard)s "
     "AND e.seq = due.seq", {"shard": 3}),
    ('INSERT INTO "relay_body" ("shard", "seq") VALUES (%s, %s)', [3, 1]),
    ('INSERT INTO "relay_body" ("seq", "shard") VALUES (%s, %s), (%s, %s)', [1, 3, 2, 3]),
    ('INSERT INTO "relay_body" ("shard", "seq") SELECT * FROM UNNEST((%s)::smallint[], '
     "(%s)::bigint[])", [[3, 3], [1, 2]]),
    ("WITH due AS MATERIALIZED (SELECT seq FROM relay_envelope WHERE shard = %(shard)s "
     "FOR UPDATE SKIP LOCKED) DELETE FROM relay_body USING due WHERE shard = %(shard)s "
     "AND relay_body.seq = due.seq", {"shard": 3}),
    # Whoever only reads may look everywhere, and what is no hot table is not looked at.
    ("SELECT DISTINCT shard FROM relay_envelope WHERE expires_at <= now()", {}),
    ("UPDATE relay_device SET disabled_at = now() WHERE device_id = %(id)s", {"id": 1}),
    ("INSERT INTO outbox_lease (name) VALUES (%(name)s)", {"name": "x"}),
    ("DELETE FROM relay_body WHERE shard = 3 -- never relay_now()", {}),
    ("UPDATE outbox_event SET kind = 'now()' WHERE shard = %(shard)s", {"shard": 3}),
]  # fmt: skip

BAD = [
    ('UPDATE "relay_envelope" SET "outcome" = %s WHERE "seq" = %s', ["x", 1], NO_SHARD),
    ("UPDATE relay_envelope SET outcome = 'x'", {}, NO_SHARD),
    ("DELETE FROM relay_body WHERE shard IN (1, 2)", {}, NO_SHARD),
    ("DELETE FROM relay_body WHERE shard = ANY(%(shards)s)", {"shards": [1]}, NO_SHARD),
    ("DELETE FROM relay_body WHERE shard > 3", {}, NO_SHARD),
    ("DELETE FROM relay_body WHERE NOT (shard = 3)", {}, NO_SHARD),
    ("DELETE FROM relay_body WHERE shard = 3 OR seq = 1", {}, NO_SHARD),
    ("DELETE FROM relay_body AS b USING due WHERE b.shard = due.shard", {}, NO_SHARD),
    ('SELECT 1 FROM "idempotency_record" FOR UPDATE', [], NO_SHARD),
    ("SELECT 1 FROM outbox_event WHERE seq = 1 FOR NO KEY UPDATE SKIP LOCKED", {}, NO_SHARD),
    ('INSERT INTO "relay_body" ("seq") VALUES (%s)', [1], NO_SHARD),
    ("INSERT INTO relay_body (shard, seq) SELECT shard, seq FROM old", {}, NO_SHARD),
    # The main statement names one, and a part of it does not.
    ("WITH due AS (SELECT seq FROM relay_envelope WHERE seq < 9 FOR UPDATE) DELETE FROM "
     "relay_body USING due WHERE shard = %(shard)s", {"shard": 3}, NO_SHARD),
    ("WITH gone AS (DELETE FROM relay_body WHERE seq = 1) UPDATE relay_envelope SET size = 1 "
     "WHERE shard = %(shard)s", {"shard": 3}, NO_SHARD),
    ('INSERT INTO "relay_body" ("shard", "seq") VALUES (%s, %s), (%s, %s)', [3, 1, 4, 1],
     "names more than one shard: [3, 4]"),
    ('INSERT INTO "relay_body" ("shard") SELECT * FROM UNNEST((%s)::smallint[])', [[3, 4]],
     "names more than one shard: [3, 4]"),
    ("WITH a AS (DELETE FROM relay_body WHERE shard = %(a)s) DELETE FROM relay_envelope "
     "WHERE shard = %(b)s", {"a": 1, "b": 2}, "names more than one shard: [1, 2]"),
    ("UPDATE outbox_event SET next_at = relay_now() WHERE shard = %(shard)s", {"shard": 3},
     "asks relay_now in a statement that locks or changes"),
    ("UPDATE outbox_event SET next_at = clock_timestamp() WHERE shard = 3", {},
     "asks clock_timestamp in a statement that locks or changes"),
    ("DELETE FROM relay_body WHERE shard = 3 AND CURRENT_TIMESTAMP > x", {},
     "asks CURRENT_TIMESTAMP in a statement that locks or changes"),
    ("UPDATE outbox_event SET next_at = next_at + interval '1 s' WHERE shard = 3", {},
     "asks interval in a statement that locks or changes"),
    ("SELECT now() FROM quotas_queueusage WHERE shard = 3 FOR UPDATE", {},
     "asks now in a statement that locks or changes"),
    ("INSERT INTO relay_envelope (shard, seq) VALUES (3, nextval('line'))", {},
     "asks nextval in a statement that locks or changes"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "parameters"), GOOD)
def test_the_guard_lets_a_good_statement_pass(statement: str, parameters: object) -> None:
    assert violations_of(statement, parameters) == []


@pytest.mark.parametrize(("statement", "parameters", "why"), BAD)
def test_the_guard_stops_a_bad_statement(statement: str, parameters: object, why: str) -> None:
    assert is_watched(statement)
    assert violations_of(statement, parameters) == [why]


@pytest.mark.parametrize("path", sorted((PROJECT / "relay/sql/functions").glob("*.sql")))
def test_the_statements_inside_a_function_keep_the_rule_too(path: Path) -> None:
    text = re.sub(r"--[^\n]*", "", path.read_text("utf-8"))
    text = text.replace("p_key_shard", "7").replace("p_shard", "3")
    found = re.findall(r"(?:INSERT INTO|UPDATE|DELETE FROM|SELECT)\b[^;]*;", text)
    watched = [re.sub(r"INTO v_\w+", "", each) for each in found]
    watched = [each for each in watched if is_watched(each)]
    assert len(watched) >= 5
    assert [why for each in watched for why in violations_of(each, {})] == []


def test_the_guard_is_on_the_connection_and_knows_who_sent_a_statement(
    inside: InsideClient, statement_guard: StatementGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM relay_body")  # ours: not looked at
    assert statement_guard.take() == []
    without_shard = line._GIVE_BACK.replace("usage.shard = %(shard)s AND", "")
    assert without_shard != line._GIVE_BACK
    monkeypatch.setattr(line, "_GIVE_BACK", without_shard)
    recipient = make_device()
    accepted = submit_surely(inside, make_device(), recipient).json()
    inside.acknowledge(recipient, [accepted["message_id"]])
    [violation] = statement_guard.take()
    assert violation.why == NO_SHARD
    assert violation.where.startswith("config/kernel/sql.py:")


def _batch(relay: InsideClient, recipients: list) -> None:  # type: ignore[type-arg]
    entries = [
        {
            "recipient_device_id": str(device.id),
            "message_id": str(uuid4()),
            "protocol_version": 1,
            "ciphertext": "eHh4",
        }
        for device in recipients
    ]
    key = {"Idempotency-Key": new_key()}
    path = "/v1/envelopes/batch"
    answer = relay.call("POST", path, make_device(), json={"envelopes": entries}, headers=key)
    assert answer.status_code == 200


def test_the_whole_main_job_keeps_the_rule(
    inside: InsideClient, clock: DatabaseClock, statement_guard: StatementGuard
) -> None:
    """Every way through the house, in this process, under the guard."""
    before = GUARD.watched
    sender, provisioner = make_device(), make_provisioner()
    devices = [make_device() for _ in range(20)]  # in several shards
    recipient, message_id, key = devices[0], uuid4(), new_key()
    for _ in range(2):  # and the replay
        inside.submit(sender, recipient, message_id=message_id, key=key)
    inside.submit(sender, recipient, message_id=message_id)  # a duplicate
    inside.submit(sender, recipient, b"other", message_id=message_id)  # a conflict
    inside.submit(sender, uuid4())  # nobody
    _batch(inside, devices * 2)
    inside.acknowledge(recipient, [message_id, uuid4()], key=new_key())
    inside.pull(recipient)
    inside.device(recipient)
    set_limits(pending_count=10)
    for _ in range(12):
        inside.submit(sender, devices[1], ttl_seconds=60)
    clock.shift(timedelta(seconds=61))
    assert inside.submit(sender, devices[1]).status_code == 201  # after an inline expiry
    inside.call("PUT", f"/v1/devices/{uuid4()}", provisioner, json={"token_sha256": "ab" * 32})
    inside.call("DELETE", f"/v1/devices/{devices[2].id}", provisioner)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE quotas_queueusage SET pending_count = 7, pending_bytes = 7")
    assert len(list(quota_audit(repair=True))) > 0
    sweep()
    clock.shift(timedelta(days=9))
    sweep()
    sweep()
    assert GUARD.watched - before > 150
    assert [str(violation) for violation in statement_guard.take()] == []


def test_microseconds_that_are_passed_on_are_exact(inside: InsideClient) -> None:
    """As no statement asks the clock itself, what it says must survive the way round."""
    recipient = make_device()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE OR REPLACE FUNCTION relay_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
            "AS $$ SELECT timestamptz '2026-06-01 12:00:00.123457+00' $$"
        )
    accepted = submit_surely(inside, make_device(), recipient).json()
    assert accepted["accepted_at"] == "2026-06-01T12:00:00.123457Z"
    with connection.cursor() as cursor:
        cursor.execute("SELECT accepted_at FROM relay_envelope")
        assert cursor.fetchone()[0] == datetime(2026, 6, 1, 12, 0, 0, 123457, UTC)
