"""`limits` and `retention`: what they accept, what they write, and that both or neither stands."""

import threading
from typing import Any

import pytest
from django.core.management.base import CommandError
from django.db import IntegrityError, connection, transaction

from adminui import policies
from adminui.models import AuditEntry
from adminui.selectors.audit import verify_chain
from adminui.services import limits as limits_service
from adminui.services import retention as retention_service
from adminui.services.limits import limits_set
from adminui.services.policies import PolicyRefused
from adminui.services.retention import retention_set
from config.kernel import advisory
from quotas.models import LimitPolicy
from quotas.selectors import current_limits
from relay.models import RetentionPolicy
from relay.selectors.retention import current_retention
from tests.admin.commands import Finished, answer, manage, said
from tests.conftest import test_database_url

# PROTOCOL section 8, in bytes, days, seconds and things.
BOUNDS = [
    ("limits", "envelope_bytes", 1_024, 1_048_576),
    ("limits", "pending_count", 10, 100_000),
    ("limits", "pending_bytes", 1_048_576, 4_294_967_296),
    ("limits", "actor_rate", 1, 1_000_000),
    ("limits", "address_rate", 1, 1_000_000),
    ("limits", "window_seconds", 1, 3_600),
    ("retention", "ttl_days", 1, 30),
    ("retention", "min_ttl_seconds", 1, 86_400),
    ("retention", "receipt_days", 2, 90),
]
ENDS = [(policy, name, value) for policy, name, low, high in BOUNDS for value in (low, high)]
BEYOND = [
    (policy, name, value) for policy, name, low, high in BOUNDS for value in (low - 1, high + 1)
]
MODELS: dict[str, Any] = {"limits": LimitPolicy, "retention": RetentionPolicy}


@pytest.fixture(autouse=True)
def _usual_rates(_clean: None) -> None:
    """The defaults of PROTOCOL section 8; other tests want the rates out of the way."""
    LimitPolicy.objects.update(actor_rate=200, address_rate=2_000)


def put(policy: str, name: str, value: object, reason: str = "a test") -> Any:
    option = "--" + name.replace("_", "-")
    return answer(policy, "set", f"{option}={value}", "--reason", reason)


def versions(policy: str) -> list[int]:
    return list(MODELS[policy].objects.order_by("version").values_list("version", flat=True))


@pytest.mark.parametrize(("policy", "name", "value"), ENDS)
def test_both_ends_of_every_bound_are_allowed(policy: str, name: str, value: int) -> None:
    made = put(policy, name, value)
    assert (made["version"], made[name]) == (2, value)
    assert getattr(MODELS[policy].objects.get(version=2), name) == value


@pytest.mark.parametrize(("policy", "name", "value"), BEYOND)
def test_one_beyond_a_bound_is_refused(policy: str, name: str, value: int) -> None:
    with pytest.raises(CommandError) as refusal:
        put(policy, name, value)
    low, high = next((low, high) for _, known, low, high in BOUNDS if known == name)
    assert f"{name} = {value} is not allowed: {low} to {high}" in str(refusal.value)
    assert versions(policy) == [1]
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(("policy", "name", "value"), BEYOND)
def test_the_database_refuses_what_bypasses_the_service(policy: str, name: str, value: int) -> None:
    row = MODELS[policy].objects.get(version=1)
    row.version = 2
    setattr(row, name, value)
    with pytest.raises(IntegrityError, match=f"{name}_within_bounds"):
        row.save(force_insert=True)


@pytest.mark.parametrize("value", [[], [0], [256], [1, 2, 256], [-1]])
def test_the_database_refuses_protocol_versions_that_bypass_the_service(value: list[int]) -> None:
    row = LimitPolicy.objects.get(version=1)
    row.version, row.protocol_versions = 2, value
    with pytest.raises(IntegrityError, match="limits_protocol_versions_within_bounds"):
        row.save(force_insert=True)


@pytest.mark.parametrize(
    ("text", "stored"),
    [("1,2", [1, 2]), ("255", [255]), ("3, 1,2", [1, 2, 3]), ("1,255", [1, 255])],
)
def test_protocol_versions_are_stored_in_rising_order(text: str, stored: list[int]) -> None:
    assert put("limits", "protocol_versions", text)["protocol_versions"] == stored
    assert LimitPolicy.objects.get(version=2).protocol_versions == stored


@pytest.mark.parametrize("text", ["0", "256", "1,256", "0,1", "1,1", "-1"])
def test_protocol_versions_out_of_bounds_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"protocol_versions = .* is not allowed: each 1 to 255"):
        put("limits", "protocol_versions", text)
    assert versions("limits") == [1]


@pytest.mark.parametrize("value", [True, 1.5, "2048", None])
def test_a_value_that_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(PolicyRefused, match="envelope_bytes"):
        limits_set(actor="a", reason="r", changes={"envelope_bytes": value})


@pytest.mark.parametrize("name", ["version", "created_at", "ttl_days", "no_such_setting"])
def test_what_is_no_setting_is_refused(name: str) -> None:
    with pytest.raises(PolicyRefused, match=f"There is no setting {name}"):
        limits_set(actor="a", reason="r", changes={name: 2})


def test_the_address_rate_can_be_switched_off_and_on() -> None:
    assert put("limits", "address_rate", "off")["address_rate"] is None
    assert current_limits().address_rate is None
    assert put("limits", "address_rate", 50)["address_rate"] == 50
    assert current_limits().address_rate == 50


def test_a_new_version_changes_what_is_named_and_keeps_the_rest() -> None:
    before = current_limits()
    answer("limits", "set", "--pending-count=500", "--window-seconds=60", "--reason=r")
    policy = LimitPolicy.objects.get(version=2)
    assert (policy.pending_count, policy.window_seconds) == (500, 60)
    assert policy.envelope_bytes == before.envelope_bytes == 65_536
    assert (policy.pending_bytes, policy.protocol_versions) == (67_108_864, [1])
    assert LimitPolicy.objects.get(version=1).pending_count == 1_000
    assert current_limits().pending_count == 500


def test_a_change_writes_one_audit_entry_with_both_sides_and_the_reason() -> None:
    made = put("limits", "address_rate", "off", reason="  one office behind one address ")
    entry = AuditEntry.objects.get()
    before = {
        "version": 1,
        "envelope_bytes": 65_536,
        "pending_count": 1_000,
        "pending_bytes": 67_108_864,
        "actor_rate": 200,
        "address_rate": 2_000,
        "window_seconds": 10,
        "protocol_versions": [1],
    }
    assert entry.before == before
    assert entry.after == {**before, "version": 2, "address_rate": None}
    assert (entry.action, entry.target) == ("limits.set", "limits")
    assert entry.reason == "one office behind one address"
    assert entry.actor.startswith("command:")
    assert made["audit_entry"] == entry.id == 1
    assert verify_chain().ok


def test_a_change_of_retention_is_audited_too() -> None:
    answer("retention", "set", "--ttl-days=14", "--receipt-days=15", "--reason=longer holidays")
    entry = AuditEntry.objects.get()
    assert entry.before == {"version": 1, "ttl_days": 7, "min_ttl_seconds": 60, "receipt_days": 8}
    assert entry.after == {"version": 2, "ttl_days": 14, "min_ttl_seconds": 60, "receipt_days": 15}
    assert (entry.action, entry.reason) == ("retention.set", "longer holidays")
    assert (current_retention().ttl_days, current_retention().receipt_days) == (14, 15)


@pytest.mark.parametrize(
    ("service", "policy"), [(limits_service, "limits"), (retention_service, "retention")]
)
def test_a_change_whose_audit_entry_fails_leaves_no_version(
    service: Any, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: Any) -> None:
        assert versions(policy) == [1, 2]  # written, and about to be undone
        raise RuntimeError("no room for the entry")

    monkeypatch.setattr(service, "audit_write", fails)
    name, value = ("pending_count", 500) if policy == "limits" else ("ttl_days", 9)
    with pytest.raises(RuntimeError, match="no room"):
        put(policy, name, value)
    assert versions(policy) == [1]


@pytest.mark.parametrize("reason", ["", "   ", "two\nlines", "bell\a", "nul\0", "x" * 501])
def test_a_change_needs_a_reason_of_one_printable_line(reason: str) -> None:
    with pytest.raises(PolicyRefused, match="reason"):
        limits_set(actor="a", reason=reason, changes={"pending_count": 500})
    with pytest.raises(PolicyRefused, match="reason"):
        retention_set(actor="a", reason=reason, changes={"ttl_days": 9})
    assert (versions("limits"), versions("retention")) == ([1], [1])


def test_a_reason_of_500_characters_is_allowed() -> None:
    limits_set(actor="a", reason="x" * 500, changes={"pending_count": 500})
    assert AuditEntry.objects.get().reason == "x" * 500


def test_a_change_that_changes_nothing_is_refused() -> None:
    with pytest.raises(PolicyRefused, match="Nothing to change: name at least one setting"):
        limits_set(actor="a", reason="r", changes={})
    with pytest.raises(PolicyRefused, match="pending_count = 1000 already holds"):
        limits_set(actor="a", reason="r", changes={"pending_count": 1_000})
    with pytest.raises(PolicyRefused, match="protocol_versions = 1 already holds"):
        limits_set(actor="a", reason="r", changes={"protocol_versions": [1]})
    with pytest.raises(PolicyRefused, match="ttl_days = 7, receipt_days = 8 already holds"):
        retention_set(actor="a", reason="r", changes={"ttl_days": 7, "receipt_days": 8})
    assert (versions("limits"), versions("retention")) == ([1], [1])
    assert not AuditEntry.objects.exists()


def change_at_once(*changes: dict[str, Any]) -> list[str]:
    """Each change in a thread of its own, all at once; returns what was raised."""
    barrier, raised = threading.Barrier(len(changes)), list[str]()

    def change(wanted: dict[str, Any]) -> None:
        try:
            barrier.wait(30)
            limits_set(actor="a", reason="r", changes=wanted)
        except BaseException as error:
            raised.append(str(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=change, args=(wanted,)) for wanted in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return raised


def test_two_changes_at_once_are_two_versions_and_neither_is_lost() -> None:
    assert change_at_once({"pending_count": 500}, {"window_seconds": 60}) == []
    assert versions("limits") == [1, 2, 3]
    newest = LimitPolicy.objects.get(version=3)
    assert (newest.pending_count, newest.window_seconds) == (500, 60)
    told = AuditEntry.objects.order_by("id").values_list("after__version", flat=True)
    assert list(told) == [2, 3]


def test_the_same_change_twice_at_once_is_one_version_and_a_refusal() -> None:
    for turn in range(1, 6):
        value = {"pending_count": 500 + turn}
        held = f"Nothing to change: pending_count = {500 + turn} already holds."
        assert change_at_once(value, value) == [held]
        assert versions("limits") == list(range(1, turn + 2))


def test_no_two_settings_within_bounds_contradict_each_other() -> None:
    """What adminui.policies says, so that whoever moves a bound comes by here."""
    bounds = {
        setting.name: (setting.low, setting.high)
        for setting in (*policies.LIMITS, *policies.RETENTION)
    }
    assert bounds == {name: (low, high) for _, name, low, high in BOUNDS}
    assert bounds["envelope_bytes"][1] <= bounds["pending_bytes"][0]
    assert bounds["min_ttl_seconds"][1] <= bounds["ttl_days"][0] * 86_400


def test_show_prints_value_bounds_version_and_since_when() -> None:
    LimitPolicy.objects.update(
        address_rate=None, envelope_bytes=65_537, created_at="2026-12-01T04:05:06Z"
    )
    shown = said("limits", "show")
    rows = {" ".join(line.split()) for line in shown.splitlines()}
    assert "Limits, version 1" in rows
    assert "Envelope size 65,537 B 1 KiB to 1 MiB --envelope-bytes" in rows
    assert "Pending envelopes a device 1,000 10 to 100,000 --pending-count" in rows
    assert "Pending bytes a device 64 MiB 1 MiB to 4 GiB --pending-bytes" in rows
    assert "Submits an actor, a window 200 1 to 1,000,000 --actor-rate" in rows
    assert "Submits an address, a window off 1 to 1,000,000, or off --address-rate" in rows
    assert "Window 10 s 1 s to 1 h --window-seconds" in rows
    assert "Protocol versions accepted 1 each 1 to 255, at least one --protocol-versions" in rows
    assert "In force since 2026-12-01 04:05 UTC." in rows


def test_show_of_retention_in_words_and_as_json() -> None:
    RetentionPolicy.objects.update(created_at="2026-12-01T04:05:06Z")
    rows = {" ".join(line.split()) for line in said("retention", "show").splitlines()}
    assert "Instance TTL 7 d 1 d to 30 d --ttl-days" in rows
    assert "Sender's minimum TTL 60 s 1 s to 1 d --min-ttl-seconds" in rows
    assert "Receipts kept 8 d 2 d to 90 d --receipt-days" in rows
    assert answer("retention", "show") == {
        "version": 1,
        "since": "2026-12-01T04:05:06.000000Z",
        "ttl_days": 7,
        "min_ttl_seconds": 60,
        "receipt_days": 8,
    }


def test_show_always_tells_the_newest_version() -> None:
    put("limits", "pending_count", 500)
    shown = answer("limits", "show")
    assert (shown["version"], shown["pending_count"]) == (2, 500)


def test_set_shows_what_it_changed_and_no_more() -> None:
    rows = said("limits", "set", "--pending-bytes=1048576", "--reason=r").splitlines()
    assert " ".join(rows[0].split()) == "Limits, version 2"
    assert "Pending bytes a device 64 MiB 1 MiB" in {" ".join(row.split()) for row in rows}
    assert not any("Envelope size" in row for row in rows)


# --- As an operator runs them -----------------------------------------------------------------


def test_exit_code_and_output_of_a_change() -> None:
    done = manage("limits", "set", "--pending-count", "500", "--reason", "smaller", "--json")
    assert (done.code, done.stderr) == (0, "")
    assert (done.json["version"], done.json["pending_count"]) == (2, 500)
    assert versions("limits") == [1, 2]


def test_a_value_out_of_bounds_is_one_line_on_stderr_and_exit_code_2() -> None:
    done = manage("limits", "set", "--pending-count", "9", "--reason", "r", "--json")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "Error: pending_count = 9 is not allowed: 10 to 100000.\n"


def test_a_change_that_changes_nothing_is_refused_with_exit_code_1() -> None:
    done = manage("limits", "set", "--pending-count", "1000", "--reason", "r")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr == "Error: Nothing to change: pending_count = 1000 already holds.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("limits", "set", "--envelope-bytes=5", "--reason=r"),
        ("limits", "set", "--protocol-versions=1,300", "--reason=r"),
        ("limits", "set", "--reason=r"),
        ("limits", "set", "--pending-count=500", "--reason= "),
        ("retention", "set", "--ttl-days=31", "--reason=r"),
        ("outbox", "requeue", "--all", "--topic=wake", "--reason= "),
    ],
)
def test_what_no_command_line_may_ask_for_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as refusal:
        said(*arguments)
    assert refusal.value.returncode == 2
    assert (versions("limits"), versions("retention")) == ([1], [1])


@pytest.mark.parametrize(
    "arguments",
    [
        ("limits",),
        ("limits", "set", "--pending-count", "500"),
        ("limits", "set", "--pending-count", "1e3", "--reason", "r"),
        ("limits", "set", "--actor-rate", "off", "--reason", "r"),
        ("limits", "set", "--protocol-versions", "1,,2", "--reason", "r"),
        ("retention", "set", "--ttl-day", "7 d", "--reason", "r"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = manage(*arguments)
    assert done.code == 2
    assert "error:" in done.stderr
    assert "Traceback" not in done.stderr
    assert (versions("limits"), versions("retention")) == ([1], [1])


def _one_line(done: Finished) -> bool:
    return done.stdout == "" and done.stderr.count("\n") == 1


def test_a_database_that_is_away_is_one_line_and_exit_code_1() -> None:
    done = manage("limits", "show", DATABASE_URL="postgresql://relay:secret@127.0.0.1:1/relay")
    assert done.code == 1
    assert _one_line(done)
    assert done.stderr.startswith("Error: PostgreSQL does not answer: ")
    assert "secret" not in done.stderr


def test_a_database_that_is_not_migrated_is_one_line_and_exit_code_1() -> None:
    url = test_database_url() + "_unmigrated"
    empty = url.rsplit("/", 1)[1]
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {empty}")
        cursor.execute(f"CREATE DATABASE {empty}")
    try:
        done = manage("limits", "show", DATABASE_URL=url)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {empty} WITH (FORCE)")
    assert done.code == 1
    assert _one_line(done)
    assert done.stderr == ("Error: The database is not migrated: run `manage.py migrate` first.\n")


def test_a_lock_that_another_holds_is_one_line_and_exit_code_1() -> None:
    with transaction.atomic():
        advisory.hold_until_commit(advisory.AdvisoryLock.AUDIT_CHAIN)
        done = manage("limits", "set", "--pending-count", "500", "--reason", "r")
    assert done.code == 1
    assert _one_line(done)
    assert "Another process holds what this command has to change" in done.stderr
    assert versions("limits") == [1]


def test_help_tells_bounds_and_that_a_reason_is_needed() -> None:
    shown = " ".join(manage("limits", "set", "--help").stdout.split())
    assert "Envelope size: 1024 to 1048576 (1 KiB to 1 MiB)" in shown
    assert "Submits an address, a window: 1 to 1000000, or off" in shown
    assert "why, for the audit log (required)" in shown
