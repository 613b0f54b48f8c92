"""Somebody's old transaction holds back vacuum, at full load (FAULTS 23, PgQue#80).

A look for what is due steps over the dead entries of events that are long done, and there are
more of them every second. The queue must go on, no more may be under way than back-pressure
allows, and the figure that the alarm hangs on must rise; afterwards vacuum mends it.
"""

import time
from uuid import uuid4

import httpx
import psycopg
import pytest
from django.db import connection

from outbox.models import Event, EventState
from outbox.services.pressure import LEAST_PER_WORKER
from tests.concurrency.crowd import Crew
from tests.faults.load import Load
from tests.faults.verdict import assert_sound_after
from tests.faults.world import DISPATCHER, WAKES, WEB, World
from tests.outbox.kit import add_events, wait_until
from tests.rules.planting import run

pytestmark = pytest.mark.slow

#: Events that come and go while the transaction is open, besides those of the clients.
EVENTS, AT_ONCE = 6_000, 500
#: The dispatcher's own look for due events in one shard (outbox/sql/due.sql).
_PROBE = """
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
SELECT shard, topic, next_at FROM outbox_event
 WHERE shard = %s AND topic = 'wake' AND state <> 'dead' AND next_at <= relay_now()
 ORDER BY next_at LIMIT 1
"""


def _metric(world: World, name: str) -> float:
    text = httpx.get(f"{world.url}/metrics").text
    [line] = [each for each in text.splitlines() if each.startswith(f"{name} ")]
    return float(line.rsplit(" ", 1)[1])


def _pages_of_a_probe() -> int:
    """Pages that looking for due events takes, in the shard where it takes most."""
    found = []
    for shard in range(16):
        [(plan,)] = run(_PROBE, [shard])
        found.append(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
    return max(found)


def _under_way() -> int:
    return Event.objects.filter(state=EventState.PUBLISHED).count()


class Adder:
    """Adds events until there were enough."""

    def __init__(self) -> None:
        self.left = EVENTS

    def add(self) -> bool:
        """Events for devices that need no wake, as many as the relay takes away."""
        if Event.objects.count() < 4 * AT_ONCE:
            add_events(AT_ONCE, topic="wake", device_id=uuid4())
            self.left -= AT_ONCE
        return self.left > 0


@pytest.mark.timeout(120)
def test_a_held_xmin_raises_the_alarm_and_claims_stay_bounded(world: World, load: Load) -> None:
    world.kill(WAKES)
    world.start(DISPATCHER)
    run("VACUUM outbox_event")
    adder = Adder()
    with psycopg.connect(world.postgres.url()) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM outbox_event")
        began = time.monotonic()
        add_events(3 * LEAST_PER_WORKER, topic="wake", device_id=uuid4())
        wait_until(_under_way, 5, "the first claims")
        time.sleep(1)  # several rounds
        assert _under_way() == LEAST_PER_WORKER  # nobody works: no more are claimed
        world.start(WAKES)
        with load.running(writers=2, readers=0, pause=0.05), Crew() as adders:
            adders.add(adder.add)
            adders.wait()
        world.drain()
        held = time.monotonic() - began
        assert _metric(world, "relay_oldest_xmin_seconds") >= held - 1
        dead = _pages_of_a_probe()
        holder.rollback()
    assert adder.left <= 0
    run("VACUUM outbox_event")
    assert _pages_of_a_probe() < 20 < dead  # it was held back, and is so no more
    assert _metric(world, "relay_oldest_xmin_seconds") < held
    assert_sound_after(load)


@pytest.fixture(autouse=True)
def _web(world: World) -> None:
    world.start(WEB)
    connection.close()
