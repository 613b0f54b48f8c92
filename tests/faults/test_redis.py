"""Redis away, full, slow, wiped and moved, under load (FAULTS 7, 8, 13 and 28).

What becomes of single events in each state of their way is shown in tests/outbox; here the
whole relay runs, and clients must not notice.
"""

import os
import threading
import time

import pytest

from outbox.models import Event, EventState
from tests.faults.load import Load, percentile
from tests.faults.servers import OwnRedis
from tests.faults.verdict import assert_sound_after
from tests.faults.world import BACKGROUND, DISPATCHER, EVERYTHING, WAKES, WEB, World
from tests.outbox.kit import wait_until

#: How long Redis is away; half a minute for whoever wants to be surer.
AWAY = min(float(os.environ.get("FAULT_SECONDS", "6")), 30.0)
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
    with load.running(writers=4, readers=0, pause=0.02):
        time.sleep(3)
        before = len(load.attempts)
        world.redis.pause()
        time.sleep(AWAY)
        during = len(load.attempts)
        left = failures()
        world.redis.kill()
        world.redis.start()
        time.sleep(1)
    assert load.codes() == UNDISTURBED
    assert left == {(0, EventState.PENDING)} or left == {
        (0, EventState.PENDING),
        (0, EventState.PUBLISHED),  # claimed in the moment in which it stopped
    }
    usual = percentile(sorted(each.seconds for each in load.attempts[:before]), 0.99)
    meanwhile = percentile(sorted(each.seconds for each in load.attempts[before:during]), 0.99)
    assert during - before > 50
    assert meanwhile < max(2 * usual, 0.2)  # two cores shared with all that runs here
    assert_sound_after(load)


def test_a_redis_that_is_full_costs_no_failure_and_is_drained_after(
    world: World, load: Load
) -> None:
    with load.running(writers=4, readers=0, pause=0.02):
        time.sleep(0.5)
        world.redis.fill()
        time.sleep(3)
        left = failures()
        world.redis.make_room()
    assert load.codes() == UNDISTURBED
    assert {count for count, _ in left} == {0}
    assert_sound_after(load)


def test_a_redis_wiped_again_and_again_under_load_loses_no_wake(world: World, load: Load) -> None:
    with load.running(writers=4, pause=0.02):
        for _ in range(15):
            world.redis.wipe()
            time.sleep(0.2)
    assert load.codes() == UNDISTURBED
    assert_sound_after(load)


def test_a_way_to_redis_that_is_slow_stalls_and_breaks_is_survived(
    world: World, load: Load
) -> None:
    with load.running(writers=4, readers=0, pause=0.02):
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
    other, environment = None, {"RQ_KEY_PREFIX": "elsewhere"}
    if move == "to another address":
        other = OwnRedis(tmp_path_factory.mktemp("other"))
        other.start()
        environment = {"REDIS_URL": other.url}
    try:
        with load.running(writers=4, pause=0.02):
            time.sleep(1)
            world.kill(WAKES)  # jobs are left behind in the old place
            wait_until(_some_are_published, 5, "jobs that nobody takes")
            world.kill(DISPATCHER)
            for name in (DISPATCHER, WAKES, "work-maintenance", "tick"):
                world.kill(name)
                world.spawn(name, **environment)
            time.sleep(2)
        wait_until(world.is_drained, 8, "the outbox to be drained, without a lease's end")
        keys = (other or world.redis).client.keys("elsewhere:*" if other is None else "rq:*")
        assert keys
        world.start(*BACKGROUND)
        assert_sound_after(load)
    finally:
        world.kill(*BACKGROUND)
        if other is not None:
            other.kill()


def _some_are_published() -> bool:
    return Event.objects.filter(state=EventState.PUBLISHED).exists()


def test_a_web_process_without_redis_starts_and_serves(world: World, load: Load) -> None:
    world.redis.kill()
    world.kill(WEB)
    world.start(WEB)
    slow = threading.Event()
    for _ in range(20):
        if load.submit().seconds > 1:
            slow.set()
    assert not slow.is_set()
    world.redis.start()
    assert_sound_after(load)
