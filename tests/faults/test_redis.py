"""Redis away, full, slow, wiped and moved, under load (FAULTS 7, 8, 13 and 28).

What becomes of single events in each state of their way is shown in tests/outbox; here the
whole relay runs, and clients must not notice.
"""

import os
import time

import pytest

from outbox.models import Event, EventState
from tests.faults.load import Load, percentile
from tests.faults.servers import OwnRedis
from tests.faults.verdict import assert_sound_after
from tests.faults.world import DISPATCHER, EVERYTHING, WAKES, WEB, World
from tests.outbox.kit import wait_until

#: How long Redis is away; half a minute for whoever wants to be surer.
AWAY = min(float(os.environ.get("FAULT_SECONDS", "5")), 30.0)
WRITERS = 8
#: Every answer that clients may see while only Redis is in trouble.
UNDISTURBED = {"201"}

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _running(world: World) -> None:
    world.start(*EVERYTHING)


def failures() -> set[tuple[int, str]]:
    """What the events that are left have against them."""
    return set(Event.objects.values_list("failures", "state"))


def test_redis_stopped_then_killed_and_back_empty_is_not_noticed_by_clients(
    world: World, load: Load
) -> None:
    with load.running(writers=WRITERS, readers=0, pause=0.02):
        time.sleep(2.5)
        before, waits_before = len(load.attempts), world.log(WEB).count("rates.redis_away")
        stopped_at = time.monotonic()
        world.redis.pause()
        time.sleep(AWAY)
        during = len(load.attempts)
        left = failures()
        waits = world.log(WEB).count("rates.redis_away") - waits_before
        seconds = time.monotonic() - stopped_at
        world.redis.kill()
        world.redis.start()
        time.sleep(1)
    assert load.codes() == UNDISTURBED
    # What was claimed in the moment in which it stopped may count as published.
    assert {(0, EventState.PENDING)} <= left <= {(0, EventState.PENDING), (0, EventState.PUBLISHED)}
    meanwhile = [attempt.seconds for attempt in load.attempts[before:during]]
    assert len(meanwhile) > 40
    # Rates wait for Redis a quarter of a second, and say so: who was under way when it
    # stopped, and then one request every two seconds.
    assert 1 <= waits <= WRITERS + seconds / 2 + 2
    usual = percentile(sorted(attempt.seconds for attempt in load.attempts[:before]), 0.9)
    assert percentile(sorted(meanwhile), 0.9) < max(2 * usual, 0.4)
    assert_sound_after(load)


def test_a_redis_that_is_full_costs_no_failure_and_is_drained_after(
    world: World, load: Load
) -> None:
    with load.running(writers=WRITERS, readers=0, pause=0.02):
        time.sleep(0.5)
        world.redis.fill()
        time.sleep(3)
        left = failures()
        world.redis.make_room()
    assert load.codes() == UNDISTURBED
    assert {count for count, _ in left} == {0}
    assert_sound_after(load)


def test_a_way_to_redis_that_is_slow_stalls_and_breaks_is_survived(
    world: World, load: Load
) -> None:
    with load.running(writers=WRITERS, readers=0, pause=0.02):
        world.to_redis.delay = 0.05
        time.sleep(1.5)
        world.to_redis.delay = 0.0
        world.to_redis.stall()
        time.sleep(3)
        world.to_redis.flow()
        for _ in range(10):
            world.to_redis.reset_all()
            time.sleep(0.1)
        world.to_redis.refuse()
        time.sleep(1)
        world.to_redis.heal()
    assert load.codes() == UNDISTURBED
    assert_sound_after(load)


@pytest.mark.parametrize("move", ["to another address", "to another key prefix"])
def test_a_redis_moved_under_load_is_rebuilt_from_the_outbox(
    world: World, load: Load, move: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    redis, environment = world.redis, {"RQ_KEY_PREFIX": "elsewhere"}
    if move == "to another address":
        redis = OwnRedis(tmp_path_factory.mktemp("other"))
        redis.start()
        environment = {"REDIS_URL": redis.url}
    try:
        with load.running(writers=WRITERS, pause=0.02):
            world.kill(WAKES)  # jobs are left behind in the old place
            wait_until(_some_are_published, 5, "jobs that nobody takes")
            world.kill(DISPATCHER)
            for name in (DISPATCHER, WAKES):
                world.spawn(name, **environment)
            wait_until(lambda: redis.client.keys(f"{_prefix(environment)}:job:*"), 10, "jobs there")
            time.sleep(1)
        wait_until(world.is_drained, 8, "the outbox to be drained, before any lease ends")
        assert_sound_after(load)
    finally:
        world.kill(DISPATCHER, WAKES)
        if redis is not world.redis:
            redis.kill()


def _prefix(environment: dict[str, str]) -> str:
    return environment.get("RQ_KEY_PREFIX", "rq")


def _some_are_published() -> bool:
    return Event.objects.filter(state=EventState.PUBLISHED).exists()
