"""A hundred envelopes at once: each judged by itself, all under one key (PROTOCOL section 2)."""

import json
from typing import Any
from uuid import uuid4

import pytest

from idempotency.models import Record
from outbox.models import Event
from relay.models import Envelope
from tests import factories
from tests.api.helpers import (
    OMIT,
    assert_problem,
    envelope_for,
    post,
    set_limits,
    set_retention,
    untouched,
)
from tests.client import Party, RelayClient, base64_of, make_device, make_provisioner
from tests.concurrency.oracle import assert_sound
from tests.properties.batches import (
    BATCH,
    WEEK,
    assert_rejected,
    assert_stored,
    results,
    send,
    usage_of,
    verdicts,
)

MIB = 2**20


# --- A hundred devices ------------------------------------------------------------------------

FULL, UNKNOWN, CONFLICT, FIRST, TWIN = 3, 17, 42, 60, 61


def test_a_hundred_devices_each_get_their_own_answer_in_order_and_a_replay_is_the_same_bytes(
    relay: RelayClient,
) -> None:
    sender, devices = make_device(), [make_device() for _ in range(100)]
    set_limits(pending_count=10)
    for _ in range(10):
        factories.store(devices[FULL].id)
    taken = uuid4()
    relay.submit(sender, devices[CONFLICT], b"the first", message_id=taken).raise_for_status()

    entries = [
        envelope_for(device, ciphertext=base64_of(b"x" * (index + 1)))
        for index, device in enumerate(devices)
    ]
    entries[UNKNOWN]["recipient_device_id"] = str(uuid4())
    entries[CONFLICT]["message_id"] = str(taken)
    entries[TWIN] = dict(entries[FIRST])
    answer = send(relay, sender, entries, key="one key")

    found = results(answer)
    assert [(each["message_id"], each["recipient_device_id"]) for each in found] == [
        (each["message_id"], each["recipient_device_id"]) for each in entries
    ]
    odd = {FULL: "RECIPIENT_QUOTA_EXCEEDED", UNKNOWN: "RECIPIENT_UNKNOWN"}
    odd[CONFLICT] = "MESSAGE_ID_CONFLICT"
    for index, result in enumerate(found):
        if index in odd:
            assert_rejected(result, odd[index])
        else:
            assert_stored(result, "duplicate" if index == TWIN else "accepted")
    assert found[TWIN] == {**found[FIRST], "status": "duplicate"}

    # Nobody but the two with mail of their own, and the one that was never addressed, differs.
    expected = {index: (1, index + 1) for index in range(100)}
    expected |= {FULL: (10, 100), CONFLICT: (1, len(b"the first")), UNKNOWN: (0, 0), TWIN: (0, 0)}
    assert {index: usage_of(device) for index, device in enumerate(devices)} == expected

    with untouched():
        replay = send(relay, sender, entries, key="one key")
    assert (replay.status_code, replay.content) == (200, answer.content)
    assert replay.headers["idempotency-replayed"] == "true"
    assert_sound()


def test_what_a_batch_stored_is_pulled_as_it_was_sent_and_in_its_order(relay: RelayClient) -> None:
    sender, device = make_provisioner(), make_device()
    entries = [envelope_for(device, ciphertext=base64_of(bytes([n]) * 3)) for n in range(100)]
    found = results(send(relay, sender, entries))
    assert relay.walk(device, limit=7) == [
        {
            "message_id": entry["message_id"],
            "protocol_version": 1,
            "ciphertext": entry["ciphertext"],
            "size": 3,
            "accepted_at": result["accepted_at"],
            "expires_at": result["expires_at"],
        }
        for entry, result in zip(entries, found, strict=True)
    ]
    assert Event.objects.filter(topic="wake", device_id=device.id).count() == 1


# --- The edge of a quota ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "accepted"), [(0, 50), (49, 1), (50, 0)], ids=["empty", "-1", "at the edge"]
)
@pytest.mark.parametrize("edge", ["count", "bytes"])
def test_of_a_hundred_entries_for_one_device_exactly_those_that_fit_are_accepted(
    relay: RelayClient, edge: str, held: int, accepted: int
) -> None:
    size = 21_000
    set_limits(**{"pending_count": 50} if edge == "count" else {"pending_bytes": 50 * size})
    sender, device = make_device(), make_device()
    for _ in range(held):
        factories.store(device.id, size=size)
    entries = [envelope_for(device, ciphertext=base64_of(b"q" * size)) for _ in range(100)]
    answer = send(relay, sender, entries)
    refused = ["RECIPIENT_QUOTA_EXCEEDED"] * (100 - accepted)
    assert verdicts(answer, 200 if accepted else 422) == ["accepted"] * accepted + refused
    assert usage_of(device) == (held + accepted, (held + accepted) * size)


def test_a_smaller_entry_still_fits_after_a_bigger_one_was_refused(relay: RelayClient) -> None:
    set_limits(pending_bytes=MIB)
    sender, device = make_device(), make_device()
    factories.store(device.id, size=MIB - 100)
    sizes = [60, 41, 40, 1]
    entries = [envelope_for(device, ciphertext=base64_of(b"s" * size)) for size in sizes]
    full = "RECIPIENT_QUOTA_EXCEEDED"
    assert verdicts(send(relay, sender, entries)) == ["accepted", full, "accepted", full]
    assert usage_of(device) == (3, MIB)


def test_a_full_queue_makes_room_by_expiring_what_is_due(relay: RelayClient) -> None:
    set_limits(pending_count=10)
    sender, device = make_device(), make_device()
    for _ in range(10):
        factories.store_due(device.id)
    entries = [envelope_for(device) for _ in range(12)]
    expected = ["accepted"] * 10 + ["RECIPIENT_QUOTA_EXCEEDED"] * 2
    assert verdicts(send(relay, sender, entries)) == expected
    assert usage_of(device) == (10, 100)


def test_a_duplicate_wins_over_a_full_queue(relay: RelayClient) -> None:
    set_limits(pending_count=10)
    sender, device = make_device(), make_device()
    held = [envelope_for(device) for _ in range(10)]
    first = results(send(relay, sender, held))
    answer = send(relay, sender, [*held, envelope_for(device)])
    assert verdicts(answer) == ["duplicate"] * 10 + ["RECIPIENT_QUOTA_EXCEEDED"]
    assert results(answer)[:10] == [{**each, "status": "duplicate"} for each in first]


# --- Inside one batch -------------------------------------------------------------------------


def test_entries_are_judged_as_if_sent_one_after_another(relay: RelayClient) -> None:
    set_limits(envelope_bytes=1024)
    sender, one, other = make_device(), make_device(), make_device()
    same = uuid4()

    def entry(device: Party, ciphertext: bytes) -> dict[str, Any]:
        return envelope_for(device, message_id=str(same), ciphertext=base64_of(ciphertext))

    entries = [
        entry(one, b"l" * 1025),  # refused, so the id stays free
        entry(one, b"mine"),
        entry(other, b"yours"),  # the same id in another queue is another message
        entry(one, b"mine"),
        entry(one, b"changed"),
        entry(one, b"mine"),
    ]
    answer = send(relay, sender, entries)
    expected = ["ENVELOPE_TOO_LARGE", "accepted", "accepted", "duplicate"]
    assert verdicts(answer) == [*expected, "MESSAGE_ID_CONFLICT", "duplicate"]
    found = results(answer)
    assert found[3] == found[5] == {**found[1], "status": "duplicate"}
    assert (usage_of(one), usage_of(other)) == ((1, 4), (1, 5))
    [event] = Event.objects.filter(topic="security")
    assert (event.kind, event.device_id) == ("message_id_conflict", one.id)


def test_policy_rejects_its_own_entries_only(relay: RelayClient) -> None:
    set_limits(envelope_bytes=1024)
    sender, device = make_device(), make_device()
    entries = [
        envelope_for(device, ciphertext=base64_of(b"b" * 1024)),
        envelope_for(device, ciphertext=base64_of(b"b" * 1025)),
        envelope_for(device, protocol_version=2),
        envelope_for(device, ttl_seconds=60),
        envelope_for(device, ttl_seconds=59),
        envelope_for(device, ttl_seconds=-1),
        envelope_for(device, ttl_seconds=WEEK + 1),
        envelope_for(device, ttl_seconds=1, protocol_version=9, ciphertext=base64_of(b"b" * 2000)),
    ]
    found = results(send(relay, sender, entries))
    assert_stored(found[0], "accepted")
    assert_rejected(found[1], "ENVELOPE_TOO_LARGE")
    assert_rejected(found[2], "PROTOCOL_VERSION_UNSUPPORTED")
    assert_stored(found[3], "accepted", ttl=60)
    assert_rejected(found[4], "TTL_OUT_OF_RANGE")
    assert_rejected(found[5], "TTL_OUT_OF_RANGE")
    assert_stored(found[6], "accepted", ttl=WEEK)
    assert_rejected(found[7], "PROTOCOL_VERSION_UNSUPPORTED")  # version, then size, then TTL
    assert usage_of(device) == (3, 1024 + 10 + 10)


# --- All or nothing ---------------------------------------------------------------------------


def test_a_batch_of_which_nothing_is_accepted_leaves_nothing_and_its_key_free(
    relay: RelayClient,
) -> None:
    set_limits(pending_count=10)
    sender, full, fine = make_device(), make_device(), make_device()
    for _ in range(10):
        factories.store(full.id)
    refused = [
        envelope_for(full),
        envelope_for(uuid4()),
        envelope_for(fine, protocol_version=9),
        envelope_for(fine, ttl_seconds=0),
    ]
    codes = ["RECIPIENT_QUOTA_EXCEEDED", "RECIPIENT_UNKNOWN"]
    codes += ["PROTOCOL_VERSION_UNSUPPORTED", "TTL_OUT_OF_RANGE"]
    for _ in range(2):  # nothing is replayed either
        with untouched():
            answer = send(relay, sender, refused, key="still free")
        for result, code in zip(results(answer, 422), codes, strict=True):
            assert_rejected(result, code)
        assert "idempotency-replayed" not in answer.headers
    assert Record.objects.count() == 0

    answer = send(relay, sender, [envelope_for(fine)], key="still free")
    assert verdicts(answer) == ["accepted"]
    assert Record.objects.count() == 1


def test_of_a_batch_of_conflicts_only_the_security_event_stays(relay: RelayClient) -> None:
    sender, device, taken = make_device(), make_device(), uuid4()
    relay.submit(sender, device, b"the first", message_id=taken).raise_for_status()
    other = envelope_for(device, message_id=str(taken), ciphertext=base64_of(b"the second"))
    with untouched("outbox_event"):
        answer = send(relay, sender, [other] * 3)
    assert verdicts(answer, 422) == ["MESSAGE_ID_CONFLICT"] * 3
    assert Event.objects.filter(topic="security").count() == 1


_WRONG: dict[str, tuple[Any, str]] = {
    "a TTL that is no integer": ({"ttl_seconds": 60.5}, "/ttl_seconds"),
    "a version of 256": ({"protocol_version": 256}, "/protocol_version"),
    "empty ciphertext": ({"ciphertext": ""}, "/ciphertext"),
    "no recipient": ({"recipient_device_id": OMIT}, "/recipient_device_id"),
    "an entry that is none": ([], ""),
    "an id that is none": ({"message_id": "1"}, "/message_id"),
    "a member that is unknown": ({"ttl_second": 60}, "/ttl_second"),
}


@pytest.mark.parametrize("place", [0, 50, 99])
@pytest.mark.parametrize("wrong", _WRONG)
def test_one_entry_out_of_shape_refuses_the_whole_and_changes_nothing(
    relay: RelayClient, wrong: str, place: int
) -> None:
    changes, pointer = _WRONG[wrong]
    sender, device = make_device(), make_device()
    entries = [envelope_for(device) for _ in range(100)]
    entries[place] = envelope_for(device, **changes) if changes else []
    with untouched():
        answer = send(relay, sender, entries)
    assert_problem(answer, "VALIDATION_FAILED", pointers={f"/envelopes/{place}{pointer}"})


@pytest.mark.parametrize("entries", [0, 101])
def test_a_batch_holds_one_to_a_hundred_entries(relay: RelayClient, entries: int) -> None:
    sender, device = make_device(), make_device()
    with untouched():
        answer = send(relay, sender, [envelope_for(device) for _ in range(entries)])
    assert_problem(answer, "VALIDATION_FAILED", pointers={"/envelopes"})


@pytest.mark.parametrize("envelopes", [OMIT, None, {"0": {}}, "entries"], ids=type)
def test_a_batch_is_a_list(relay: RelayClient, envelopes: Any) -> None:
    sender, document = make_device(), {} if envelopes is OMIT else {"envelopes": envelopes}
    with untouched():
        answer = post(relay, sender, document, path=BATCH)
    assert_problem(answer, "VALIDATION_FAILED", pointers={"/envelopes"})


# --- One key, the rate, and the size ----------------------------------------------------------


def test_a_replay_wins_over_a_policy_changed_and_a_recipient_disabled_since(
    relay: RelayClient,
) -> None:
    provisioner, sender, device = make_provisioner(), make_device(), make_device()
    entries = [envelope_for(device, ciphertext=base64_of(b"p" * 2000)), envelope_for(uuid4())]
    first = send(relay, sender, entries, key="before")
    assert verdicts(first) == ["accepted", "RECIPIENT_UNKNOWN"]

    set_limits(envelope_bytes=1024, protocol_versions=[7], pending_count=10)
    set_retention(ttl_days=1, min_ttl_seconds=86_400)
    relay.call("DELETE", f"/v1/devices/{device.id}", provisioner).raise_for_status()
    again = send(relay, sender, entries, key="before")
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    codes = ["PROTOCOL_VERSION_UNSUPPORTED"] * 2
    assert verdicts(send(relay, sender, entries, key="after"), 422) == codes


def test_a_rejected_entry_is_sent_again_under_a_new_key(relay: RelayClient) -> None:
    set_limits(pending_count=10)
    sender, device = make_device(), make_device()
    entries = [envelope_for(device) for _ in range(11)]
    first = send(relay, sender, entries, key="first")
    assert verdicts(first) == ["accepted"] * 10 + ["RECIPIENT_QUOTA_EXCEEDED"]
    relay.acknowledge(device, [entries[0]["message_id"]]).raise_for_status()
    assert send(relay, sender, entries, key="first").content == first.content
    assert verdicts(send(relay, sender, entries, key="second")) == ["duplicate"] * 10 + ["accepted"]


def test_the_same_fields_written_otherwise_are_the_same_request(relay: RelayClient) -> None:
    sender, device = make_device(), make_device()
    entries = [envelope_for(device, ttl_seconds=60 + n) for n in range(3)]
    first = send(relay, sender, entries, key="fields")
    turned = [dict(reversed(entry.items())) for entry in entries]
    spaced = json.dumps({"envelopes": turned}, indent=3).encode()
    again = post(relay, sender, spaced, path=BATCH, key="fields")
    assert (again.status_code, again.content) == (200, first.content)


@pytest.mark.parametrize(
    "other",
    [
        lambda entries: entries[::-1],
        lambda entries: entries[:1],
        lambda entries: [*entries, entries[0]],
        lambda entries: [entries[0], {**entries[1], "ttl_seconds": 604_800}],
        lambda entries: [entries[0], {**entries[1], "message_id": str(uuid4())}],
    ],
    ids=["another order", "fewer", "more", "the default TTL spelt out", "another id"],
)
def test_another_batch_under_the_same_key_is_refused(relay: RelayClient, other: Any) -> None:
    sender, device = make_device(), make_device()
    entries = [envelope_for(device), envelope_for(device)]
    send(relay, sender, entries, key="taken").raise_for_status()
    with untouched():
        answer = send(relay, sender, other(entries), key="taken")
    assert_problem(answer, "IDEMPOTENCY_KEY_REUSED")


def test_a_batch_and_a_single_submit_may_have_the_same_key(relay: RelayClient) -> None:
    sender, device = make_device(), make_device()
    entry = envelope_for(device)
    assert verdicts(send(relay, sender, [entry], key="both")) == ["accepted"]
    single = post(relay, sender, entry, key="both")
    assert (single.status_code, "idempotency-replayed" in single.headers) == (200, False)


def test_n_entries_are_n_submits_and_what_does_not_fit_the_rate_is_refused_whole(
    relay: RelayClient,
) -> None:
    set_limits(actor_rate=100, window_seconds=3_600)
    sender, device = make_device(), make_device()
    entries = [envelope_for(device) for _ in range(100)]
    assert verdicts(send(relay, sender, entries[:60])) == ["accepted"] * 60
    with untouched():
        refused = send(relay, sender, entries[59:], key="later")
    assert_problem(refused, "RATE_LIMITED")
    assert verdicts(send(relay, sender, entries[60:], key="later")) == ["accepted"] * 40
    with untouched():
        assert_problem(relay.submit(sender, device), "RATE_LIMITED")
    assert usage_of(device) == (100, 1_000)


def test_a_batch_needs_its_key(relay: RelayClient) -> None:
    sender, document = make_device(), {"envelopes": [envelope_for(make_device())]}
    answer = relay.call("POST", BATCH, sender, json=document)
    assert_problem(answer, "IDEMPOTENCY_KEY_MISSING")
    assert Envelope.objects.count() == 0


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
def test_a_body_of_8_mib_is_read_and_one_byte_more_is_not(
    relay: RelayClient, over: int, status: int
) -> None:
    sender, device = make_device(), make_device()
    body = json.dumps({"envelopes": [envelope_for(device)]}).encode()
    body += b" " * (8 * MIB + over - len(body))
    answer = post(relay, sender, body, path=BATCH)
    assert answer.status_code == status
    if status == 413:
        assert_problem(answer, "REQUEST_TOO_LARGE")
    assert Envelope.objects.count() == 1 - over
