"""Dead letters, and the log that tells who decided on them; security events on their way there."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from adminui.models import AuditEntry
from adminui.services.policies import PolicyRefused
from config.kernel import clock as database_clock
from config.kernel import pseudonyms
from config.kernel.database import durable_transaction
from config.kernel.shards import shard_of_device
from outbox import heartbeats, topics
from outbox.heartbeats import Pulse
from outbox.models import Event, EventState
from outbox.services.adding import security_events_add
from tests.client import RelayClient, make_device
from tests.outbox.conftest import Register
from tests.outbox.kit import Effects, OwnValkey, add_events, dispatch, event, round_trip, work


def bury(count: int, topic: str = "probe", **columns: Any) -> list[UUID]:
    return add_events(
        count,
        topic=topic,
        **{"state": EventState.DEAD, "failures": 8, "last_error": "NO_ANSWER", **columns},
    )


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    call_command("outbox", *arguments, "--json")
    return dict(json.loads(capsys.readouterr().out))


def refused(*arguments: str) -> str:
    with pytest.raises(CommandError) as error:
        call_command("outbox", *arguments)
    return f"{error.value.returncode}: {error.value}"


# --- Deciding --------------------------------------------------------------------------------
def test_a_requeued_event_starts_afresh_and_the_log_tells_why(
    register: Register,
    effects: Effects,
    valkey: OwnValkey,
    capsys: pytest.CaptureFixture[str],
) -> None:
    register(effects.all_done)
    [wanted] = bury(1, starts=3)
    [other] = bury(1)
    made = command(capsys, "requeue", str(wanted), "--reason", "the gateway is back")
    row = event(wanted)
    assert (row.state, row.failures, row.starts) == (EventState.PENDING, 0, 0)
    assert row.last_error == ""
    entry = AuditEntry.objects.get()
    assert made == {"events": 1, "audit_entry": entry.id}
    assert (entry.action, entry.target) == ("outbox.requeue", f"event {wanted}")
    assert (entry.reason, entry.after) == ("the gateway is back", {"events": 1})
    assert entry.actor.startswith("command:")
    round_trip()
    assert effects.events == [wanted]
    assert event(other).state == EventState.DEAD


def test_a_whole_topic_is_requeued_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    wanted, other = bury(7), bury(3, topic="other")
    alive = add_events(1, failures=3)
    made = command(capsys, "requeue", "--all", "--topic", "probe", "--reason", "mended")
    assert made["events"] == 7
    assert {event(each).state for each in wanted} == {EventState.PENDING}
    assert {event(each).state for each in other} == {EventState.DEAD}
    assert event(alive[0]).failures == 3
    assert AuditEntry.objects.get().target == "topic probe"


def test_discarding_only_shows_unless_it_is_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    wanted, other = bury(25), bury(1, topic="other")
    choice = ("--all", "--topic", "probe", "--reason", "tokens of an old phone")
    shown = command(capsys, "discard", *choice)
    assert (shown["events"], len(shown["oldest"])) == (25, 20)
    assert {letter["event_id"] for letter in shown["oldest"]} <= set(map(str, wanted))
    assert "device_id" not in shown["oldest"][0]
    assert Event.objects.count() == 26
    assert not AuditEntry.objects.exists()
    made = command(capsys, "discard", *choice, "--for-real")
    assert made["events"] == 25
    assert [row.event_id for row in Event.objects.all()] == other
    assert AuditEntry.objects.get().action == "outbox.discard"


def test_the_look_of_a_person_names_the_events_and_how_to_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    [wanted] = bury(1)
    call_command("outbox", "discard", str(wanted))
    said = capsys.readouterr()
    assert str(wanted) in said.out
    assert "1 dead event would be deleted" in said.out
    assert said.err == "This was a look. Pass --for-real and --reason to delete them.\n"


@pytest.mark.parametrize("action", ["requeue", "discard"])
def test_what_is_not_dead_cannot_be_decided_on(action: str) -> None:
    [alive] = add_events(1)
    for_real = ["--for-real"] if action == "discard" else []
    said = refused(action, str(alive), "--reason", "impatience", *for_real)
    assert said == f"1: There is no dead event {alive}."
    assert event(alive).state == EventState.PENDING
    assert not AuditEntry.objects.exists()


def test_a_decision_needs_a_reason_and_one_choice() -> None:
    [dead] = bury(1)
    assert refused("requeue", str(dead), "--reason", " ").startswith("2: A reason is needed")
    assert refused("discard", str(dead), "--for-real").startswith("2: A reason is needed")
    for arguments in (
        [],
        ["--all"],
        ["--topic", "probe"],
        [str(dead), "--all", "--topic", "probe"],
    ):
        said = refused("requeue", *arguments, "--reason", "x")
        assert said == "2: Name one event, or pass --all with --topic."
    assert refused("requeue", "12", "--reason", "x") == "2: '12' is not an event's id."
    assert event(dead).state == EventState.DEAD


def test_neither_the_decision_nor_its_entry_is_there_without_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from adminui.services import outbox
    from outbox.services.dead import Chosen

    def fails(**_: object) -> None:
        raise PolicyRefused("no room in the log")

    monkeypatch.setattr(outbox, "audit_write", fails)
    [dead] = bury(1)
    for decide in (outbox.outbox_requeue, outbox.outbox_discard):
        with pytest.raises(PolicyRefused):
            decide(actor="x", reason="y", chosen=Chosen(event_id=dead))
    assert event(dead).state == EventState.DEAD


# --- Status ----------------------------------------------------------------------------------
def test_the_status_tells_depths_ages_and_who_is_alive(
    register: Register, effects: Effects, capsys: pytest.CaptureFixture[str]
) -> None:
    register(effects.all_done)
    now = database_clock.read()
    add_events(3, next_at=now - timedelta(seconds=90))
    add_events(2, next_at=now + timedelta(hours=1))
    add_events(4, state=EventState.PUBLISHED, next_at=now + timedelta(seconds=50))
    add_events(1, state=EventState.PUBLISHED, next_at=now - timedelta(seconds=5))
    bury(5)
    add_events(6, topic="from_the_future")
    Pulse(heartbeats.worker("wake")).beat()
    status = command(capsys, "status")
    found = {topic["topic"]: topic for topic in status["topics"]}
    probe = found["probe"]
    assert [probe[name] for name in ("due", "waiting", "published", "dead")] == [4, 2, 4, 5]
    assert 90 <= probe["oldest_due_seconds"] < 100
    assert probe["handled_here"] is True
    assert (found["from_the_future"]["due"], found["from_the_future"]["handled_here"]) == (6, False)
    assert [
        (each["topic"], each["dead"], each["code"], each["events"]) for each in status["reasons"]
    ] == [("probe", True, "NO_ANSWER", 5)]
    alive = {process["name"]: process["alive"] for process in status["processes"]}
    assert alive == {"dispatch_outbox": 0, "work wake": 1, "work maintenance": 0, "tick": 0}


def test_the_status_tells_what_is_under_way(
    register: Register, effects: Effects, valkey: OwnValkey, capsys: pytest.CaptureFixture[str]
) -> None:
    register(effects.all_done)
    add_events(30)
    round_trip()
    add_events(12)
    dispatch()
    [probe] = [each for each in command(capsys, "status")["topics"] if each["topic"] == "probe"]
    assert (probe["batched"], probe["finished"]) == (12, 30)


def test_a_person_sees_the_status_as_tables(
    register: Register, capsys: pytest.CaptureFixture[str]
) -> None:
    register(lambda events, _: {})
    add_events(2, topic="from_the_future", last_error="UNKNOWN_TOPIC")
    bury(3)
    Pulse(heartbeats.CLOCK).beat()
    call_command("outbox", "status")
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    [future] = [line for line in said if "nobody here handles it" in line]
    assert future.startswith("from_the_future 2 0 0 0 ")
    told = [line.partition(" 20")[0] for line in said if "UNKNOWN" in line or "NO_ANSWER" in line]
    assert told == ["from_the_future comes again UNKNOWN_TOPIC 2", "probe dead NO_ANSWER 3"]
    assert {"dispatch_outbox nobody", "tick 1 0"} <= set(said)


def test_metrics_tell_of_age_dead_letters_and_processes(register: Register) -> None:
    from prometheus_client import generate_latest

    from relay.selectors.gauges import GAUGES

    register(lambda events, _: {})
    add_events(1, next_at=database_clock.read() - timedelta(seconds=500))
    bury(3)
    Pulse(heartbeats.DISPATCHER).beat()
    figures = dict(
        line.rsplit(" ", 1)
        for line in generate_latest(GAUGES).decode().splitlines()
        if not line.startswith("#")
    )
    assert 500 <= float(figures['relay_outbox_oldest_due_seconds{topic="probe"}']) < 510
    assert figures['relay_outbox_dead_events{topic="probe"}'] == "3.0"
    assert figures['relay_processes_alive{process="dispatch_outbox"}'] == "1.0"
    assert figures['relay_processes_alive{process="work wake"}'] == "0.0"
    assert float(figures["relay_oldest_xmin_seconds"]) >= 0


def test_metrics_tell_how_long_somebody_holds_back_vacuum() -> None:
    import time

    import psycopg
    from prometheus_client import generate_latest

    from relay.selectors.gauges import GAUGES
    from tests.conftest import test_database_url

    with psycopg.connect(test_database_url()) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT count(*) FROM outbox_event")
        time.sleep(0.3)
        text = generate_latest(GAUGES).decode()
    [line] = [each for each in text.splitlines() if each.startswith("relay_oldest_xmin_seconds ")]
    assert float(line.rsplit(" ", 1)[1]) >= 0.3


# --- Security events -------------------------------------------------------------------------
def test_a_conflict_travels_into_the_audit_log_and_names_nobody(
    relay: RelayClient, valkey: OwnValkey
) -> None:
    sender, recipient = make_device(), make_device()
    message_id = uuid4()
    relay.submit(sender, recipient, b"one", message_id=message_id)
    for _ in range(3):  # coalesced: one entry a queue and hour
        answer = relay.submit(sender, recipient, b"another", message_id=message_id)
        assert answer.status_code == 409
    dispatch()
    assert work("maintenance").jobs == 1
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action) == ("relay", "security.message_id_conflict")
    assert entry.target == pseudonyms.lasting("device", recipient.id.bytes)
    assert entry.event_id is not None
    assert not Event.objects.filter(topic="security").exists()
    text = f"{entry.target}{entry.before}{entry.after}{entry.reason}{entry.source}"
    assert str(recipient.id) not in text
    assert str(message_id) not in text


def test_a_security_event_that_is_delivered_twice_is_told_once(valkey: OwnValkey) -> None:
    device, event_id = make_device().id, uuid4()
    for _ in range(2):
        with durable_transaction():
            security_events_add(
                kind="message_id_conflict",
                shard=shard_of_device(device),
                devices={event_id: device},
                now=database_clock.read(),
            )
        dispatch()
        work("maintenance")
    assert AuditEntry.objects.count() == 1
    assert not Event.objects.exists()


def test_security_events_travel_on_the_maintenance_queue() -> None:
    topic = topics.find("security")
    assert topic is not None
    assert topic.queue == "maintenance"
