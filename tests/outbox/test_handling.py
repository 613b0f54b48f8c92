"""Handling: what a handler says of each event, what becomes of it, and what it cannot harm."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from config.kernel import clock as database_clock
from outbox.models import Batch, Event, EventState
from outbox.services import settling
from outbox.services.batches import ClaimedBatch
from outbox.services.claiming import claim
from outbox.services.handling import HANDLER_SECONDS, handle
from outbox.services.settling import Settled, backoff, claim_undo
from outbox.topics import DONE, Disposition, EventRef, Settlement, Topic
from tests.conftest import DatabaseClock
from tests.outbox.conftest import Register
from tests.outbox.kit import PROBE, Effects, add_events, event

FAILED = Settlement(Disposition.FAILED, code="NO_ANSWER")


def run(topic: Topic) -> list[Settled | None]:
    """Claim what is due, and handle it."""
    return [handle(batch) for batch in claim(room={topic: 1_000})]


def age_of(moment: object) -> timedelta:
    """From now to a moment to come."""
    return moment - database_clock.read()  # type: ignore[operator,no-any-return]


def test_a_done_event_is_deleted_and_its_batch_is_closed(
    register: Register, effects: Effects
) -> None:
    wanted = add_events(5)
    assert run(register(effects.all_done)) == [Settled(done=5)]
    assert sorted(effects.events) == sorted(wanted)
    assert not Event.objects.exists()
    assert Batch.objects.filter(done_at=None).count() == 0 < Batch.objects.count()


def test_the_deletion_and_the_closing_are_one_transaction(
    register: Register, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_events(1)

    def broken(_: object) -> None:
        raise RuntimeError("on its way to close the batch")

    monkeypatch.setattr(settling, "_batch_rows", broken)
    with pytest.raises(RuntimeError, match="on its way"):
        run(register(effects.all_done))
    assert Event.objects.count() == 1


def test_a_handler_sees_its_events_and_how_long_it_has(register: Register) -> None:
    seen: list[tuple[Sequence[EventRef], float]] = []

    def look(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        seen.append((events, seconds))
        return {}

    device = uuid4()
    [wanted] = add_events(1, device_id=device, kind="k", failures=3)
    run(register(look))
    [([reference], seconds)] = seen
    row = event(wanted)
    assert seconds == HANDLER_SECONDS == 20
    assert reference == EventRef(
        shard=row.shard,
        event_id=wanted,
        device_id=device,
        kind="k",
        schema_version=1,
        failures=3,
        created_at=row.created_at,
    )


def test_exactly_the_listed_events_are_settled(register: Register, effects: Effects) -> None:
    """Never `id <= max`: a lower id can commit later."""
    topic = register(effects.all_done)
    low, high = UUID(int=1), UUID(int=2)
    add_events(1, shard=1)
    Event.objects.update(event_id=high)
    [batch] = claim(room={topic: 10})
    add_events(1, shard=1)
    Event.objects.filter(state=EventState.PENDING).update(event_id=low)
    assert handle(batch) == Settled(done=1)
    assert [row.event_id for row in Event.objects.all()] == [low]


def test_what_is_later_comes_again_after_a_second_without_a_failure(
    register: Register, clock: DatabaseClock
) -> None:
    """The trailing edge: a debounced wake is put back, not dropped."""
    clock.freeze("2030-01-01T12:00:00Z")
    later = Settlement(Disposition.LATER, code="DEBOUNCED")
    topic = register(lambda events, _: {each.event_id: later for each in events})
    [wanted] = add_events(1, failures=2)
    assert run(topic) == [Settled(later=1)]
    row = event(wanted)
    assert (row.state, row.failures, row.starts) == (EventState.PENDING, 2, 0)
    assert (row.last_error, age_of(row.next_at)) == ("DEBOUNCED", timedelta(seconds=1))


def test_a_handler_may_say_how_much_later(register: Register, clock: DatabaseClock) -> None:
    clock.freeze("2030-01-01T12:00:00Z")
    later = Settlement(Disposition.LATER, after_seconds=0.25)
    topic = register(lambda events, _: {each.event_id: later for each in events})
    [wanted] = add_events(1)
    run(topic)
    assert age_of(event(wanted).next_at) == timedelta(seconds=0.25)


def test_what_a_handler_does_not_mention_is_put_back_without_a_failure(
    register: Register, clock: DatabaseClock
) -> None:
    clock.freeze("2030-01-01T12:00:00Z")
    topic = register(lambda events, _: {events[0].event_id: DONE})
    add_events(3, shard=1)
    assert run(topic) == [Settled(done=1, later=2)]
    assert set(Event.objects.values_list("state", "failures", "starts")) == {("pending", 0, 0)}
    assert {age_of(row.next_at) for row in Event.objects.all()} == {timedelta(seconds=1)}


def test_the_backoff_doubles_with_up_to_half_of_it_more_and_ends_at_an_hour() -> None:
    for failures in range(1, 12):
        waits = {backoff(failures) for _ in range(50)}
        assert min(waits) >= timedelta(seconds=2**failures)
        assert max(waits) < timedelta(seconds=1.5 * 2**failures)
        assert len(waits) > 1
    assert {backoff(failures) for failures in (12, 20, 1000)} == {timedelta(hours=1)}


def test_an_event_is_dead_after_eight_failures(register: Register, clock: DatabaseClock) -> None:
    topic = register(lambda events, _: {each.event_id: FAILED for each in events})
    clock.freeze("2030-01-01T12:00:00Z")
    [wanted] = add_events(1)
    for failures in range(1, 8):
        assert run(topic) == [Settled(failed=1)]
        row = event(wanted)
        assert (row.state, row.failures, row.starts) == (EventState.PENDING, failures, 0)
        clock.freeze((row.next_at - timedelta(microseconds=1)).isoformat())
        assert run(topic) == []
        clock.freeze(row.next_at.isoformat())
    assert run(topic) == [Settled(failed=1, dead=1)]
    row = event(wanted)
    assert (row.state, row.failures, row.last_error) == (EventState.DEAD, 8, "NO_ANSWER")
    clock.shift(timedelta(days=3000))
    assert run(topic) == []


def test_a_failed_event_does_not_hold_up_its_neighbours(
    register: Register, effects: Effects
) -> None:
    def one_fails(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        return {**effects.all_done(events, seconds), events[0].event_id: FAILED}

    add_events(10)
    assert run(register(one_fails)) == [Settled(done=9, failed=1)]
    assert Event.objects.count() == 1


def test_a_handler_that_raises_fails_its_batch_and_the_poison_is_found_alone(
    register: Register, effects: Effects, clock: DatabaseClock
) -> None:
    wanted = add_events(6)
    poison = wanted[2]

    def raises(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        if poison in {each.event_id for each in events}:
            raise ValueError("secret-text")
        return effects.all_done(events, seconds)

    topic = register(raises)
    assert run(topic) == [Settled(failed=6)]
    assert set(Event.objects.values_list("failures", "starts")) == {(1, 1)}
    assert set(Event.objects.values_list("last_error", flat=True)) == {"ValueError"}
    clock.shift(timedelta(seconds=3.1))  # the first backoff, with its jitter
    settled = run(topic)
    assert len(settled) == 6
    assert effects.calls == [[each] for each in effects.events]
    assert set(effects.events) == set(wanted) - {poison}
    # It goes on alone, and dies of its eighth failure.
    offset = timedelta(seconds=3.1)
    for failures in range(2, 8):
        assert (event(poison).failures, event(poison).state) == (failures, EventState.PENDING)
        offset += timedelta(seconds=1.5 * 2**failures)
        clock.shift(offset)
        fresh = add_events(2)
        run(topic)
        assert set(fresh) <= set(effects.events)
    assert (event(poison).failures, event(poison).state) == (8, EventState.DEAD)


def test_a_handler_that_returns_nonsense_is_one_that_raised(register: Register) -> None:
    add_events(1)
    assert run(register(lambda events, _: None)) == [Settled(failed=1)]  # type: ignore[arg-type,return-value]
    assert Event.objects.get().last_error == "TypeError"


def test_a_code_that_is_too_long_for_its_column_is_cut(register: Register) -> None:
    long = Settlement(Disposition.FAILED, code="X" * 100)
    add_events(1)
    run(register(lambda events, _: {each.event_id: long for each in events}))
    assert Event.objects.get().last_error == "X" * 64


def test_five_starts_without_an_end_are_death(
    register: Register, effects: Effects, clock: DatabaseClock
) -> None:
    topic = register(effects.all_done)
    [wanted] = add_events(1, starts=4)
    neighbours = add_events(3)
    [batch, last_try] = claim(room={topic: 10})
    assert last_try.count == 1
    handle(batch)
    assert set(effects.events) == set(neighbours)
    # The fifth start is made, and does not end.
    Event.objects.update(starts=5)
    clock.shift(timedelta(seconds=61))
    assert run(topic) == [Settled()]
    row = event(wanted)
    assert (row.state, row.starts, row.last_error) == (EventState.DEAD, 5, "NO_END")
    assert wanted not in effects.events
    assert Batch.objects.filter(batch_id=batch.batch_id, done_at=None).count() == 0


def test_a_start_is_stamped_before_the_effects(register: Register) -> None:
    seen: list[int] = []

    def look(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        seen.append(event(events[0].event_id).starts)
        return {}

    [wanted] = add_events(1, starts=2)
    run(register(look))
    assert seen == [3]
    assert event(wanted).starts == 0  # and an end forgets them


# --- What is no longer ours ------------------------------------------------------------------
def claimed_once(topic: Topic) -> tuple[UUID, ClaimedBatch]:
    [wanted] = add_events(1)
    [batch] = claim(room={topic: 10})
    return wanted, batch


def test_a_job_near_the_end_of_its_lease_exits_without_working(
    register: Register, effects: Effects, clock: DatabaseClock
) -> None:
    clock.freeze("2030-01-01T12:00:00Z")
    wanted, batch = claimed_once(register(effects.all_done))
    clock.freeze("2030-01-01T12:00:28.000001Z")
    assert handle(batch) is None
    assert (effects.calls, event(wanted).starts) == ([], 0)
    clock.freeze("2030-01-01T12:00:28Z")
    assert handle(batch) == Settled(done=1)


def test_a_job_whose_events_were_claimed_again_finds_nothing_to_start(
    register: Register, effects: Effects, clock: DatabaseClock
) -> None:
    topic = register(effects.all_done)
    wanted, first = claimed_once(topic)
    Event.objects.update(next_at=database_clock.read())  # as a wiped Redis makes them
    [second] = claim(room={topic: 10})
    assert handle(first) == Settled()
    assert (effects.calls, event(wanted).state) == ([], EventState.PUBLISHED)
    assert handle(second) == Settled(done=1)


def test_a_late_end_puts_nothing_back_that_others_hold(register: Register) -> None:
    """The handler took so long that the events were claimed again: their new lease stays."""
    second: list[ClaimedBatch] = []

    def slow(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        if not second:
            Event.objects.update(next_at=database_clock.read())
            second.extend(claim(room={topic: 10}))
        return {each.event_id: FAILED for each in events}

    topic = register(slow)
    wanted, first = claimed_once(topic)
    handle(first)
    row = event(wanted)
    assert (row.state, row.failures) == (EventState.PUBLISHED, 0)
    assert row.next_at == second[0].lease_end


def test_an_effect_that_happened_late_is_not_repeated(register: Register, effects: Effects) -> None:
    second: list[ClaimedBatch] = []

    def slow(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        Event.objects.update(next_at=database_clock.read())
        second.extend(claim(room={topic: 10}))
        return effects.all_done(events, seconds)

    topic = register(slow)
    _, first = claimed_once(topic)
    handle(first)
    assert handle(second[0]) == Settled()
    assert len(effects.calls) == 1


def test_a_job_that_comes_twice_works_once(register: Register, effects: Effects) -> None:
    wanted, batch = claimed_once(register(effects.all_done))
    handle(batch)
    assert handle(batch) == Settled()
    assert effects.events == [wanted]


def test_a_job_of_a_claim_that_was_undone_does_nothing(
    register: Register, effects: Effects
) -> None:
    """The publish timed out and was carried out all the same."""
    wanted, batch = claimed_once(register(effects.all_done))
    claim_undo(batch, after=timedelta(seconds=1), code="QUEUE_AWAY")
    assert handle(batch) is None
    row = event(wanted)
    assert (row.state, row.starts, effects.calls) == (EventState.PENDING, 0, [])


def test_an_undone_claim_holds_nothing_against_the_event_and_forgets_nothing(
    register: Register, effects: Effects, clock: DatabaseClock
) -> None:
    clock.freeze("2030-01-01T12:00:00Z")
    topic = register(effects.all_done)
    [wanted] = add_events(1, starts=2, failures=3)
    [batch] = claim(room={topic: 10})
    claim_undo(batch, after=timedelta(seconds=1), code="QUEUE_AWAY")
    row = event(wanted)
    assert (row.state, row.starts, row.failures) == (EventState.PENDING, 2, 3)
    assert (row.last_error, age_of(row.next_at)) == ("QUEUE_AWAY", timedelta(seconds=1))
    assert not Batch.objects.exists()


# --- What only a newer relay understands -----------------------------------------------------
def test_an_unknown_version_is_put_back_for_half_a_minute_and_its_neighbours_finish(
    register: Register, effects: Effects, clock: DatabaseClock
) -> None:
    clock.freeze("2030-01-01T12:00:00Z")
    topic = register(effects.all_done)
    known = set(add_events(3))
    [newer] = add_events(1, schema_version=2)
    assert run(topic) == [Settled(done=3)]
    assert set(effects.events) == known
    row = event(newer)
    assert (row.state, row.failures, row.starts) == (EventState.PENDING, 0, 0)
    assert (row.last_error, age_of(row.next_at)) == ("UNKNOWN_VERSION", timedelta(seconds=30))
    clock.freeze("2030-01-01T12:00:30Z")
    assert run(register(effects.all_done, versions=2)) == [Settled(done=1)]


def test_a_topic_that_the_worker_does_not_know_is_put_back_for_half_a_minute(
    register: Register, effects: Effects, clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outbox import topics

    clock.freeze("2030-01-01T12:00:00Z")
    wanted, batch = claimed_once(register(effects.all_done))
    monkeypatch.delitem(topics._TOPICS, PROBE)
    assert handle(batch) is None
    row = event(wanted)
    assert (row.state, row.failures, row.starts) == (EventState.PENDING, 0, 0)
    assert (row.last_error, age_of(row.next_at)) == ("UNKNOWN_TOPIC", timedelta(seconds=30))
    assert not Batch.objects.exists()  # and takes no room


def test_a_batch_takes_few_statements_whatever_its_size(
    register: Register, effects: Effects
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    topic = register(effects.all_done)
    counts = []
    for size in (1, 400):
        add_events(size, shard=1)
        [batch] = claim(room={topic: 1_000})
        with CaptureQueriesContext(
            connection,
        ) as statements:
            handle(batch)
        counts.append(len(statements))
    assert counts[0] == counts[1] <= 12


def test_handling_refuses_to_run_inside_a_transaction(register: Register) -> None:
    from config.kernel.database import durable_transaction

    _, batch = claimed_once(register(lambda events, _: {}))
    with durable_transaction(), pytest.raises(RuntimeError):
        handle(batch)


def test_a_handler_has_no_transaction_around_it(register: Register) -> None:
    from django.db import connection

    seen: list[bool] = []

    def look(events: Sequence[EventRef], seconds: float) -> Mapping[UUID, Settlement]:
        seen.append(connection.in_atomic_block)
        return {}

    add_events(1)
    run(register(look))
    assert seen == [False]
