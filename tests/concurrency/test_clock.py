"""PostgreSQL's clock is wrong, or stands at an edge (FAULTS 26 and 30)."""

from datetime import UTC, datetime, timedelta

import pytest

from relay.models import Envelope
from tests.client import RelayClient, make_device
from tests.concurrency.loads import submit_surely, sweep
from tests.concurrency.oracle import Journal, assert_sound
from tests.concurrency.walks import Walk
from tests.conftest import DatabaseClock

HOUR = timedelta(hours=1)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize("shift", [-HOUR, HOUR], ids=["an hour back", "an hour ahead"])
def test_order_and_cursors_hold_when_the_clock_jumps(
    relay: RelayClient, clock: DatabaseClock, shift: timedelta
) -> None:
    sender, recipient = make_device(), make_device()
    journal, walk = Journal(), Walk(relay, recipient, limit=2)

    def submit() -> datetime:
        answer = submit_surely(relay, sender, recipient, journal=journal, ttl_seconds=7200)
        assert answer.status_code == 201
        document = answer.json()
        assert _moment(document["expires_at"]) - _moment(document["accepted_at"]) == 2 * HOUR
        return _moment(document["accepted_at"])

    times = [submit(), submit(), submit()]
    walk.step()  # stands in the middle
    clock.shift(shift)
    times += [submit(), submit()]
    walk.step()
    clock.shift(timedelta(0))
    times += [submit(), submit()]
    walk.to_the_end()

    assert times == sorted(set(times))
    if shift < timedelta(0):
        # Back: time goes on where it stood, a microsecond an envelope.
        assert times[3] - times[2] == timedelta(microseconds=1)
        assert times[4] - times[3] == timedelta(microseconds=1)
    else:
        # Ahead, and then right again: it goes on from there.
        assert times[3] - times[2] > timedelta(minutes=59)
        assert times[6] - times[5] == timedelta(microseconds=1)
    assert walk.seen == [str(entry.message_id) for entry in journal.accepted]
    assert [each["message_id"] for each in relay.walk(recipient)] == walk.seen
    assert_sound(journal)


def test_expiry_follows_the_clock_that_is_there_and_a_flip_is_for_good(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    sender, recipient = make_device(), make_device()
    short = submit_surely(relay, sender, recipient, ttl_seconds=60).json()["message_id"]
    long = submit_surely(relay, sender, recipient, ttl_seconds=86400).json()["message_id"]

    def pending() -> list[str]:
        return [each["message_id"] for each in relay.walk(recipient)]

    clock.shift(HOUR)
    assert pending() == [long]
    clock.shift(timedelta(0))  # right again before any sweep: not flipped, so still there
    assert pending() == [short, long]
    clock.shift(HOUR)
    sweep()
    clock.shift(-HOUR)
    assert pending() == [long]  # swept: nothing is revived
    results = relay.acknowledge(recipient, [short, long]).json()["results"]
    assert [result["status"] for result in results] == ["expired", "acknowledged"]
    assert_sound()


def test_a_cursor_lives_thirty_days_of_the_databases_clock(
    relay: RelayClient, clock: DatabaseClock
) -> None:
    recipient = make_device()
    clock.freeze("2026-06-01T00:00:00.000000Z")
    cursor = relay.pull(recipient).json()["next_cursor"]
    for moment, status in [
        ("2026-05-31T23:00:00.000000Z", 200),  # an hour back does no harm
        ("2026-06-30T23:59:59.999999Z", 200),
        ("2026-07-01T00:00:00.000000Z", 410),
    ]:
        clock.freeze(moment)
        assert relay.pull(recipient, cursor=cursor).status_code == status, moment


@pytest.mark.parametrize(
    ("moment", "alive"),
    [
        ("2026-06-01T12:00:59.999999Z", True),
        ("2026-06-01T12:01:00.000000Z", False),
        ("2026-06-01T12:01:00.000001Z", False),
    ],
    ids=["-1 µs", "at it", "+1 µs"],
)
class TestAtTheEdgeOfTheTtl:
    """Accepted at 12:00:00 sharp for 60 s. `now >= expires_at` is expired, to the microsecond."""

    @pytest.fixture
    def message_id(self, relay: RelayClient, clock: DatabaseClock) -> str:
        clock.freeze("2026-06-01T12:00:00.000000Z")
        self.recipient = make_device()
        accepted = submit_surely(relay, make_device(), self.recipient, ttl_seconds=60).json()
        assert accepted["expires_at"] == "2026-06-01T12:01:00.000000Z"
        return str(accepted["message_id"])

    def test_pull(
        self, relay: RelayClient, clock: DatabaseClock, message_id: str, moment: str, alive: bool
    ) -> None:
        clock.freeze(moment)
        page = relay.pull(self.recipient).json()
        assert [each["message_id"] for each in page["envelopes"]] == [message_id] * alive
        assert page["has_more"] is False

    def test_the_devices_own_count(
        self, relay: RelayClient, clock: DatabaseClock, message_id: str, moment: str, alive: bool
    ) -> None:
        clock.freeze(moment)
        pending = relay.device(self.recipient).json()["pending"]
        assert pending == {"count": 1 * alive, "bytes": 10 * alive}

    def test_acknowledge(
        self, relay: RelayClient, clock: DatabaseClock, message_id: str, moment: str, alive: bool
    ) -> None:
        clock.freeze(moment)
        for _ in range(2):  # and the same on repeat
            [result] = relay.acknowledge(self.recipient, [message_id]).json()["results"]
            assert result["status"] == ("acknowledged" if alive else "expired")
        assert Envelope.objects.get().outcome == ("acknowledged" if alive else "expired")
        assert_sound()

    def test_sweep(
        self, relay: RelayClient, clock: DatabaseClock, message_id: str, moment: str, alive: bool
    ) -> None:
        clock.freeze(moment)
        sweep()
        assert Envelope.objects.get().outcome == ("pending" if alive else "expired")
        assert_sound()
