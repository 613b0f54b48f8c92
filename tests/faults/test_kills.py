"""SIGKILL to each process in turn, over and over, under load (FAULTS 1, 3 to 6)."""

import itertools
import os
import time

import pytest

from tests.faults.load import Load
from tests.faults.verdict import assert_sound_after
from tests.faults.world import EVERYTHING, World

#: How long it goes on; the long run is for whoever wants to be surer.
SECONDS = float(os.environ.get("FAULT_SECONDS", "15"))


@pytest.fixture
def running(world: World) -> World:
    world.start(*EVERYTHING)
    return world


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_each_process_is_killed_in_turn_every_second(running: World, load: Load) -> None:
    until, killed = time.monotonic() + SECONDS, 0
    with load.running(writers=4, pause=0.02):
        for name in itertools.cycle(EVERYTHING):
            if time.monotonic() > until:
                break
            running.kill(name)
            running.spawn(name)
            killed += 1
            time.sleep(1)
    running.start(*EVERYTHING)
    assert killed >= len(EVERYTHING)
    assert len(load.journal.accepted) > 50
    assert_sound_after(load)
