"""SIGKILL to each process in turn, over and over, under load (FAULTS 1, 3 to 6)."""

import itertools
import os
import time
from datetime import timedelta

import pytest

from relay.models import Envelope
from tests.client import make_device
from tests.faults.load import Load
from tests.faults.verdict import assert_sound_after
from tests.faults.world import EVERYTHING, MAINTENANCE, WEB, World

#: How long it goes on; the long run is for whoever wants to be surer.
SECONDS = float(os.environ.get("FAULT_SECONDS", "12"))


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
            if name == WEB:
                running.start(WEB)  # else it would never serve on a slow machine
            else:
                running.spawn(name)
            killed += 1
            time.sleep(1)
    running.start(*EVERYTHING)
    assert killed >= len(EVERYTHING)
    assert len(load.journal.accepted) > 20
    assert_sound_after(load)


def test_without_any_maintenance_worker_acknowledged_ciphertext_is_gone_within_ten_minutes(
    running: World,
) -> None:
    """Redis is well and takes the jobs that nobody comes for. Time moves; nothing waits for it."""
    sender, recipient = make_device(), make_device()
    running.kill(MAINTENANCE)
    with running.client() as relay:
        message_id = relay.submit(sender, recipient).json()["message_id"]
        assert relay.acknowledge(recipient, [message_id]).status_code == 200
    step, passed = timedelta(minutes=1), timedelta(0)
    while not _is_cleaned():
        assert passed < timedelta(minutes=10)
        running.pass_time(step)
        passed += step
        until = time.monotonic() + 2.5  # the clock looks every second
        while time.monotonic() < until and not _is_cleaned():
            time.sleep(0.05)
    assert running.redis.client.ping()


def _is_cleaned() -> bool:
    return not Envelope.objects.filter(cleaned_at__isnull=True).exists()
