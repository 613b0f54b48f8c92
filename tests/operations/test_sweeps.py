"""Every row has an end: what each sweep removes, and what it leaves alone."""

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection

from config.kernel.shards import shard_of_device
from idempotency.models import Record
from outbox.models import SweepRun
from quotas.models import QueueUsage
from relay.models import Body, Device, Envelope, Outcome
from relay.services.devices import device_disable_by_operator
from relay.services.sweeping import Pace, sweep_all
from tests.client import RelayClient, make_device
from tests.conftest import PROJECT, DatabaseClock, test_database_url
from tests.factories import (
    RecordFactory,
    now,
    store,
    store_due,
    store_ended,
    store_receipt,
)

FAST = Pace(batch=500, rows_per_second=1_000_000, pause_seconds=0)


def sweep() -> dict[str, int]:
    """Every sweep once; rows by name."""
    reports = sweep_all(pace=FAST, stop=lambda: False, most_seconds=60)
    return {report.name: report.rows for report in reports}


def usage_of(device_id: UUID) -> tuple[int, int]:
    usage = QueueUsage.objects.get(shard=shard_of_device(device_id), device_id=device_id)
    return usage.pending_count, usage.pending_bytes


def test_what_is_due_expires_and_gives_its_quota_back() -> None:
    device = make_device().id
    due = [store_due(device, size=7) for _ in range(3)]
    kept = store(device, size=5)
    assert usage_of(device) == (4, 26)
    assert sweep()["expire"] == 3
    assert usage_of(device) == (1, 5)
    outcomes = dict(Envelope.objects.values_list("seq", "outcome"))
    assert outcomes == {**{row.seq: "expired" for row in due}, kept.seq: "pending"}
    # The same round removes the ciphertext; what is still pending keeps its own.
    assert list(Body.objects.values_list("seq", flat=True)) == [kept.seq]


def test_an_ended_envelope_loses_its_body_and_stays_as_a_receipt_without_size() -> None:
    device = make_device().id
    ended = store_ended(device)
    assert sweep()["clean"] == 1
    assert not Body.objects.exists()
    [receipt] = Envelope.objects.all()
    assert (receipt.size, receipt.acked_at, receipt.protocol_version) == (None, None, None)
    assert receipt.cleaned_at is not None
    assert (receipt.message_id, receipt.outcome) == (ended.message_id, Outcome.ACKNOWLEDGED)
    assert bytes(receipt.fingerprint) == bytes(ended.fingerprint)
    assert (receipt.accepted_at, receipt.expires_at) == (ended.accepted_at, ended.expires_at)


def test_every_acknowledged_body_goes_at_once(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    ids = [relay.submit(sender, recipient).json()["message_id"] for _ in range(5)]
    relay.acknowledge(recipient, ids[:4])
    call_command("sweep", "--json")
    assert Body.objects.count() == 1
    assert Envelope.objects.filter(cleaned_at__isnull=False).count() == 4


def test_a_receipt_lapses_when_its_time_is_up_and_not_before() -> None:
    device = make_device().id
    store_receipt(device, until=now() - timedelta(seconds=1))
    kept = store_receipt(device, until=now() + timedelta(minutes=1))
    assert sweep()["lapse"] == 1
    assert list(Envelope.objects.values_list("seq", flat=True)) == [kept.seq]


def test_an_envelope_with_a_body_never_lapses() -> None:
    device = make_device().id
    row = store_ended(device)
    Envelope.objects.update(
        accepted_at=now() - timedelta(days=30),
        expires_at=now() - timedelta(days=23),
        receipt_until=now() - timedelta(days=1),
        cleanup_after=now() + timedelta(minutes=5),  # not due for cleaning yet
    )
    assert sweep()["lapse"] == 0
    assert Envelope.objects.get().seq == row.seq


def test_records_are_pruned_after_their_lifetime() -> None:
    RecordFactory(expires_at=now() - timedelta(seconds=1))
    kept = RecordFactory(expires_at=now() + timedelta(minutes=1))
    assert sweep()["prune"] == 1
    assert [bytes(row.scope_hash) for row in Record.objects.all()] == [kept.scope_hash]


def test_a_key_is_kept_for_at_least_a_day(relay: RelayClient, clock: DatabaseClock) -> None:
    sender, recipient = make_device(), make_device()
    relay.submit(sender, recipient, key="one")
    clock.shift(timedelta(hours=24, minutes=59))
    assert sweep()["prune"] == 0
    clock.shift(timedelta(hours=25, minutes=1))
    assert sweep()["prune"] == 1


def test_a_closed_queue_is_emptied_and_its_rows_go_with_the_last_receipt() -> None:
    device, neighbour = make_device().id, make_device().id
    store(device)
    store(device)
    store(neighbour)
    device_disable_by_operator(device_id=device)
    assert sweep()["empty"] == 2
    assert usage_of(device) == (0, 0)
    assert set(Envelope.objects.filter(device_id=device).values_list("outcome", flat=True)) == {
        "purged"
    }
    assert usage_of(neighbour) == (1, 10)
    assert Device.objects.filter(device_id=device).exists()
    # Its receipts lapse; then nothing of the device is left, and the neighbour is untouched.
    Envelope.objects.filter(device_id=device).update(
        accepted_at=now() - timedelta(days=9),
        expires_at=now() - timedelta(days=2),
        receipt_until=now() - timedelta(seconds=1),
    )
    sweep()
    sweep()
    assert not Device.objects.filter(device_id=device).exists()
    assert not QueueUsage.objects.filter(device_id=device).exists()
    assert Device.objects.filter(device_id=neighbour).exists()


def test_a_disabled_device_that_never_had_mail_goes_at_once() -> None:
    device = make_device().id
    device_disable_by_operator(device_id=device)
    sweep()
    assert not Device.objects.exists()
    assert not QueueUsage.objects.exists()


def test_more_than_a_batch_is_swept_in_batches() -> None:
    device = make_device().id
    for _ in range(7):
        store_due(device)
    pace = Pace(batch=3, rows_per_second=1_000_000, pause_seconds=0)
    reports = {r.name: r.rows for r in sweep_all(pace=pace, stop=lambda: False, most_seconds=60)}
    assert (reports["expire"], reports["clean"]) == (7, 7)
    assert usage_of(device) == (0, 0)


def test_what_others_hold_is_skipped_and_told(relay: RelayClient) -> None:
    import psycopg

    device, free = make_device().id, make_device().id
    store_due(device)
    store_due(free)
    with psycopg.connect(test_database_url()) as other:
        other.execute("SELECT 1 FROM quotas_queueusage WHERE device_id = %s FOR UPDATE", [device])
        reports = {
            report.name: report
            for report in sweep_all(pace=FAST, stop=lambda: False, most_seconds=60)
        }
    assert reports["expire"].rows == 1
    assert reports["expire"].busy == 1
    assert usage_of(free) == (0, 0)
    assert usage_of(device) == (1, 10)
    assert sweep()["expire"] == 1


def test_several_sweeps_at_once_end_each_row_once() -> None:
    devices = [make_device().id for _ in range(4)]
    for device in devices:
        for _ in range(10):
            store_due(device)
    barrier = threading.Barrier(4)
    totals: list[int] = []

    def run() -> None:
        barrier.wait()
        pace = Pace(batch=3, rows_per_second=1_000_000, pause_seconds=0)
        reports = sweep_all(pace=pace, stop=lambda: False, most_seconds=60)
        totals.append(sum(report.rows for report in reports if report.name == "expire"))
        connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sweep()
    assert [usage_of(device) for device in devices] == [(0, 0)] * 4
    assert set(Envelope.objects.values_list("outcome", flat=True)) == {"expired"}
    assert sum(totals) <= 40
    assert not Body.objects.exists()


def test_a_sweep_killed_half_way_leaves_nothing_half_done() -> None:
    device = make_device().id
    for _ in range(60):
        store_due(device, size=3)
    command = [sys.executable, "manage.py", "sweep"]
    environment = {
        **os.environ,
        "DATABASE_URL": test_database_url(),
        "RELAY_SWEEP_BATCH": "2",
        "RELAY_SWEEP_PAUSE_MS": "20",
    }
    process = subprocess.Popen(
        command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while Envelope.objects.filter(outcome="expired").count() < 4 and process.poll() is None:
        pass
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    pending = Envelope.objects.filter(outcome="pending").count()
    assert 0 < pending < 60
    assert usage_of(device) == (pending, 3 * pending)
    sweep()
    assert usage_of(device) == (0, 0)
    assert not Body.objects.exists()


def test_a_sweep_that_fails_is_recorded_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    device = make_device().id
    store_due(device)
    store_ended(device)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE quotas_queueusage RENAME TO elsewhere")
    try:
        swept = sweep()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO quotas_queueusage")
    assert "expire" not in swept
    assert swept["clean"] == 1
    failed = SweepRun.objects.get(name="expire")
    assert failed.succeeded_at is None
    assert failed.last_error.startswith("ProgrammingError at ")
    assert SweepRun.objects.get(name="clean").succeeded_at is not None


def test_the_pace_keeps_to_rows_a_second() -> None:
    rested: list[float] = []
    pace = Pace(batch=100, rows_per_second=1_000, pause_seconds=0.01)
    import time
    from unittest.mock import patch

    with patch.object(time, "sleep", rested.append):
        pace.rest(rows=100, took=0.02)  # 100 rows fill a tenth of a second
        pace.rest(rows=1, took=0.02)  # ahead of the pace: only the pause
    assert rested == [pytest.approx(0.08), 0.01]
