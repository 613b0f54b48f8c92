"""The clock process: one works, the others stand by, and it ends cleanly."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from outbox import machinery
from outbox.models import Lease, SweepRun
from relay.models import Body
from relay.services.ticking import Clock
from tests.client import make_device
from tests.conftest import PROJECT, DatabaseClock, test_database_url
from tests.factories import store_ended


def test_a_tick_removes_what_was_acknowledged() -> None:
    store_ended(make_device().id)
    assert Clock.new().tick()
    assert not Body.objects.exists()
    assert set(SweepRun.objects.exclude(succeeded_at=None).values_list("name", flat=True)) == {
        "expire",
        "empty",
        "clean",
        "lapse",
        "prune",
        "tidy",
    }


def test_only_the_holder_of_the_lease_works() -> None:
    first, second = Clock.new(), Clock.new()
    assert first.tick()
    store_ended(make_device().id)
    assert not second.tick()
    assert Body.objects.count() == 1
    assert first.tick()
    assert Body.objects.count() == 0


def test_a_standby_takes_over_when_the_holder_lets_go() -> None:
    first, second = Clock.new(), Clock.new()
    first.tick()
    first.let_go()
    assert second.tick()


def test_a_standby_takes_over_when_the_holder_died(clock: DatabaseClock) -> None:
    first, second = Clock.new(), Clock.new()
    first.tick()
    clock.shift(timedelta(seconds=44))
    assert not second.tick()
    clock.shift(timedelta(seconds=46))
    assert second.tick()


def test_a_lease_is_held_by_one_and_extended_by_the_same() -> None:
    one, other = uuid4(), uuid4()
    assert machinery.lease_hold(name="x", holder=one, seconds=10)
    assert not machinery.lease_hold(name="x", holder=other, seconds=10)
    assert machinery.lease_hold(name="x", holder=one, seconds=10)
    machinery.lease_let_go(name="x", holder=other)
    assert Lease.objects.get(name="x").holder == one


def test_the_process_works_and_ends_cleanly_on_sigterm() -> None:
    store_ended(make_device().id)
    environment = {**os.environ, "DATABASE_URL": test_database_url(), "RELAY_TICK_SECONDS": "1"}
    process = subprocess.Popen(
        [sys.executable, "manage.py", "tick"],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while Body.objects.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert not Body.objects.exists()
    assert out.startswith("tick ended after ")
    assert not Lease.objects.filter(name="tick").exists()


def once() -> CommandError:
    """How one round of the command ended that should not end well."""
    with pytest.raises(CommandError) as refusal:
        call_command("tick", "--once", stdout=StringIO())
    return refusal.value


def test_one_round_that_did_nothing_says_why_by_its_exit_code_too() -> None:
    assert Clock.new().tick()  # and keeps the lease
    refusal = once()
    assert str(refusal) == "Nothing was done: another process is the clock just now."
    assert refusal.returncode == 1


def test_one_round_that_did_its_work_is_done() -> None:
    store_ended(make_device().id)
    call_command("tick", "--once", stdout=StringIO())
    assert not Body.objects.exists()
