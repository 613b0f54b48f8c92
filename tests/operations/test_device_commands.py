"""`manage.py device_create`, `device_disable` and `quota_audit`."""

import json
from io import StringIO
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command

from config.kernel.shards import shard_of_device
from quotas.models import QueueUsage
from relay.models import Device
from relay.services.sweeping import Pace, sweep_all
from tests.client import Party, RelayClient, make_device
from tests.factories import store


def run(*arguments: str) -> list[dict[str, object]]:
    """The JSON lines that a command prints."""
    out = StringIO()
    call_command(*arguments, "--json", stdout=out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_created_devices_can_be_used_at_once(relay: RelayClient) -> None:
    lines = run("device_create", "--count", "3")
    assert [set(line) for line in lines] == [{"device_id", "token"}] * 3
    assert len({line["device_id"] for line in lines}) == 3
    for line in lines:
        party = Party(line["device_id"], str(line["token"]))  # type: ignore[arg-type]
        assert relay.device(party).json()["device_id"] == line["device_id"]


@pytest.mark.parametrize("count", ["0", "-1", "100001", "x", "1.5"])
def test_an_impossible_count_is_refused(count: str) -> None:
    with pytest.raises((CommandError, SystemExit)):
        call_command("device_create", f"--count={count}")
    assert not Device.objects.exists()


def test_disabling_only_looks_without_for_real() -> None:
    device = make_device().id
    store(device, size=7)
    [line] = run("device_disable", str(device))
    assert line == {
        "device_id": str(device),
        "disabled": False,
        "pending": {"count": 1, "bytes": 7},
    }
    assert Device.objects.get(device_id=device).state == "active"


def test_disabling_for_real_ends_the_device(relay: RelayClient) -> None:
    device, sender = make_device(), make_device()
    [line] = run("device_disable", str(device.id), "--for-real")
    assert line["disabled"] is True
    assert relay.device(device).status_code == 401
    assert relay.submit(sender, device).json()["code"] == "RECIPIENT_UNKNOWN"


def test_disabling_an_unknown_device_is_refused() -> None:
    with pytest.raises(CommandError, match="There is no device with this id"):
        call_command("device_disable", str(uuid4()), "--for-real")


def test_a_right_queue_passes_the_audit() -> None:
    store(make_device().id)
    assert run("quota_audit") == [{"drifted": []}]


def drifted_queue() -> tuple[Party, QueueUsage]:
    device = make_device()
    store(device.id, size=7)
    store(device.id, size=8)
    rows = QueueUsage.objects.filter(shard=shard_of_device(device.id), device_id=device.id)
    rows.update(pending_count=5, pending_bytes=1)
    return device, rows.get()


def test_the_audit_finds_drift_and_says_so_by_its_exit_code() -> None:
    device, _ = drifted_queue()
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("quota_audit", "--json", stdout=out)
    assert ended.value.code == 1
    [drift] = json.loads(out.getvalue())["drifted"]
    assert drift["counted"] == {"count": 5, "bytes": 1}
    assert drift["true"] == {"count": 2, "bytes": 15}
    assert str(device.id) not in out.getvalue()


def test_repair_only_looks_without_for_real() -> None:
    _, before = drifted_queue()
    [line] = run("quota_audit", "--repair")
    assert line["drifted"][0]["repaired"] is False  # type: ignore[index]
    assert QueueUsage.objects.get(device_id=before.device_id).pending_count == 5


def test_repair_for_real_mends_the_totals() -> None:
    _, before = drifted_queue()
    [line] = run("quota_audit", "--repair", "--for-real")
    assert line["drifted"][0]["repaired"] is True  # type: ignore[index]
    after = QueueUsage.objects.get(device_id=before.device_id)
    assert (after.pending_count, after.pending_bytes) == (2, 15)
    assert run("quota_audit") == [{"drifted": []}]


def test_a_clock_row_from_the_future_is_found_and_mended() -> None:
    device = make_device().id
    envelope = store(device)
    rows = QueueUsage.objects.filter(device_id=device, shard=shard_of_device(device))
    rows.update(last_accepted_us=4_102_444_800_000_000)  # the year 2100
    with pytest.raises(SystemExit):
        call_command("quota_audit", "--json", stdout=StringIO())
    run("quota_audit", "--repair", "--for-real")
    assert run("quota_audit") == [{"drifted": []}]
    # Never behind what is stored, or a later envelope would be accepted "before" it.
    stored_us = int(envelope.accepted_at.timestamp() * 1_000_000)
    assert rows.get().last_accepted_us >= stored_us


def told(*arguments: str) -> str:
    """What a command prints for people."""
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_disabling_what_is_disabled_says_so_and_is_done() -> None:
    device = str(make_device().id)
    store(UUID(device), size=7)
    assert told("device_disable", device).startswith("This would remove 1 pending envelope (7 ")
    assert told("device_disable", device, "--for-real").startswith("Disabled. 1 pending envelope")
    already = "It is disabled already. 1 pending envelope (7 bytes) left to remove.\n"
    assert told("device_disable", device, "--for-real") == told("device_disable", device) == already
    sweep_all(pace=Pace(), stop=lambda: False, most_seconds=60)
    assert run("device_disable", device) == [
        {"device_id": device, "disabled": True, "pending": {"count": 0, "bytes": 0}}
    ]


def test_a_new_token_comes_with_the_advice_to_keep_it() -> None:
    err = StringIO()
    call_command("device_create", stdout=StringIO(), stderr=err)
    assert err.getvalue().startswith("Keep the tokens: ")


def test_for_real_alone_is_a_mistake_of_the_command_line() -> None:
    _, before = drifted_queue()
    with pytest.raises(CommandError, match="--for-real goes with --repair") as refusal:
        call_command("quota_audit", "--for-real", stdout=StringIO())
    assert refusal.value.returncode == 2
    assert QueueUsage.objects.get(device_id=before.device_id).pending_count == 5
