"""One key, many at once (FAULTS 18 and the first half of 19)."""

import time
from collections import Counter
from uuid import uuid4

import httpx

from idempotency.fingerprints import scope_hash
from idempotency.models import Record
from relay.models import Body, Envelope
from tests.client import RelayClient, make_device, new_key
from tests.concurrency.crowd import Background, together
from tests.concurrency.loads import code_of, submit_surely
from tests.concurrency.oracle import Journal, assert_sound
from tests.concurrency.outside import connect, usage_row_locked, waiting_for_a_lock
from tests.factories import RecordFactory

CROWD = 100


def _is_replay(answer: httpx.Response) -> bool:
    return answer.headers.get("Idempotency-Replayed") == "true"


def _check_one_answer(answers: list[httpx.Response]) -> str:
    """Each is the same 201, or says that the first one still runs; the 201's body."""
    stored = [answer for answer in answers if answer.status_code == 201]
    others = [answer for answer in answers if answer.status_code != 201]
    assert len({answer.content for answer in stored}) == 1
    assert {code_of(answer) for answer in others} <= {"IDEMPOTENCY_IN_PROGRESS"}
    assert all(answer.status_code == 409 for answer in others)
    assert all(answer.headers["Retry-After"] == "1" for answer in others)
    # One made the envelope; whoever else got the 201 got it again.
    assert Counter(_is_replay(answer) for answer in stored) == {False: 1, True: len(stored) - 1}
    return stored[0].text


def test_a_hundred_submits_with_one_key_make_one_envelope(relay: RelayClient) -> None:
    sender, recipient, key, message_id = make_device(), make_device(), new_key(), uuid4()

    def one() -> httpx.Response:
        return relay.submit(sender, recipient, message_id=message_id, key=key)

    body = _check_one_answer(together([one] * CROWD))
    assert Envelope.objects.filter(device_id=recipient.id).count() == 1
    assert Record.objects.count() == 1
    journal = Journal()
    journal.add(recipient.id, message_id, key, body)
    assert_sound(journal)


def test_while_the_first_is_held_up_the_others_wait_or_are_told_and_then_get_its_answer(
    relay: RelayClient,
) -> None:
    sender, recipient, key, message_id = make_device(), make_device(), new_key(), uuid4()

    def one() -> httpx.Response:
        return relay.submit(sender, recipient, message_id=message_id, key=key)

    with usage_row_locked(recipient.id) as let_go:
        first = Background(one)
        waiting_for_a_lock(1)  # the first one, for the device's row
        rush = Background(lambda: together([one] * 30))
        waiting_for_a_lock(2)  # another one, for the key
        let_go()
        answers = [first.result(), *rush.result()]
    body = _check_one_answer(answers)
    again = one()
    assert (again.status_code, again.text, _is_replay(again)) == (201, body, True)
    assert Envelope.objects.filter(device_id=recipient.id).count() == 1
    assert_sound()


def test_a_key_whose_first_request_does_not_end_is_409_in_time_and_free_again_after_it(
    relay: RelayClient,
) -> None:
    """The first one is a transaction from outside that never ends."""
    sender, recipient, key = make_device(), make_device(), new_key()
    hashed = scope_hash(caller=f"device:{sender.id}", route="POST /v1/envelopes", key=key)
    row = RecordFactory.build(scope_hash=hashed)
    with connect() as outside:
        outside.execute(
            "INSERT INTO idempotency_record "
            "(shard, scope_hash, attempt, fingerprint, status, body, expires_at) "
            "VALUES (%s, %s, %s, %s, 0, '', now())",
            [row.shard, hashed, row.attempt, row.fingerprint],
        )
        began = time.monotonic()
        answer = relay.submit(sender, recipient, key=key)
        assert 1.9 < time.monotonic() - began < 4
        assert (answer.status_code, code_of(answer)) == (409, "IDEMPOTENCY_IN_PROGRESS")
        assert answer.headers["Retry-After"] == "1"
        assert answer.json()["retryable"] is True
        # With another key nobody waits.
        assert relay.submit(sender, recipient).status_code == 201
        outside.rollback()
    assert relay.submit(sender, recipient, key=key).status_code == 201
    assert_sound()


def test_a_submit_that_gave_up_leaves_its_key_free(relay: RelayClient) -> None:
    sender, recipient, key = make_device(), make_device(), new_key()
    with usage_row_locked(recipient.id):
        assert relay.submit(sender, recipient, key=key).status_code == 503
    assert Record.objects.count() == 0
    assert relay.submit(sender, recipient, key=key).status_code == 201
    assert Envelope.objects.filter(device_id=recipient.id).count() == 1
    assert_sound()


def test_one_key_with_two_bodies_stores_the_first_and_refuses_the_other(
    relay: RelayClient,
) -> None:
    sender, recipient, key = make_device(), make_device(), new_key()
    ids = [uuid4(), uuid4()]
    contents = [b"one ciphertext", b"other ciphertext"]

    def one(which: int) -> httpx.Response:
        return relay.submit(sender, recipient, contents[which], message_id=ids[which], key=key)

    answers = together([lambda which=i % 2: (which, one(which)) for i in range(40)])
    winner = {which for which, answer in answers if answer.status_code == 201}
    assert len(winner) == 1
    [won] = winner
    _check_one_answer([answer for which, answer in answers if which == won])
    lost = Counter(code_of(answer) for which, answer in answers if which != won)
    assert set(lost) <= {"IDEMPOTENCY_KEY_REUSED", "IDEMPOTENCY_IN_PROGRESS"}
    assert code_of(one(1 - won)) == "IDEMPOTENCY_KEY_REUSED"
    assert [bytes(body.ciphertext) for body in Body.objects.all()] == [contents[won]]
    assert_sound()


def test_the_same_key_of_two_callers_is_two_keys(relay: RelayClient) -> None:
    senders = [make_device() for _ in range(10)]
    recipient, key = make_device(), new_key()
    answers = together(
        [
            lambda sender=sender: submit_surely(relay, sender, recipient, key=key)
            for sender in senders
        ]
    )
    assert [answer.status_code for answer in answers] == [201] * 10
    assert not any(_is_replay(answer) for answer in answers)
    assert Envelope.objects.filter(device_id=recipient.id).count() == 10
    assert_sound()
