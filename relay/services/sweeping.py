"""Running the sweeps: paced, recorded, stoppable between any two batches."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from config.kernel import clock, logs
from config.kernel.database import assert_no_transaction
from outbox import machinery
from relay.services.sweeps import SWEEPS, Sweep

#: Seconds of one job. The jobs of all sweeps may stand in line before an event of the outbox,
#: which must be started well before its lease ends.
SLICE_SECONDS = 4.0

DONE = logs.event("sweep.done", "sweep", "rows", "milliseconds", level=logging.DEBUG)
FAILED = logs.event("sweep.failed", "sweep", "error", level=logging.ERROR)


@dataclass(frozen=True)
class Pace:
    """How hard a sweep may work: rows a batch, rows a second, and a pause between batches."""

    batch: int = field(default_factory=lambda: int(settings.RELAY_SWEEP_BATCH))
    rows_per_second: int = field(default_factory=lambda: int(settings.RELAY_SWEEP_ROWS_PER_SECOND))
    pause_seconds: float = field(default_factory=lambda: settings.RELAY_SWEEP_PAUSE_MS / 1000)

    def rest(self, *, rows: int, took: float) -> None:
        """Wait so that the next batch does not come too early."""
        assert_no_transaction()
        time.sleep(max(self.pause_seconds, rows / self.rows_per_second - took))


@dataclass(frozen=True)
class SweepReport:
    """What one sweep did. `busy` shards hold work that others had locked: the next run's."""

    name: str
    rows: int
    seconds: float
    busy: int
    stopped: bool


def sweep_all(
    *,
    pace: Pace,
    stop: Callable[[], bool],
    most_seconds: float,
    sweeps: Sequence[Sweep] = SWEEPS,
) -> list[SweepReport]:
    """Every sweep once, each at most `most_seconds` long. Raises nothing that one can survive:
    a sweep that fails is recorded and logged, and the next one runs all the same."""
    reports = []
    for sweep in sweeps:
        if stop():
            break
        try:
            reports.append(sweep_run(sweep, pace=pace, stop=stop, most_seconds=most_seconds))
        except (DatabaseError, InterfaceError) as error:
            _record_failure(sweep, error)
    return reports


def sweep_slice(*, name: str) -> None:
    """What a worker does of a sweep in one job; the clock asks again when it was not enough."""
    chosen = [sweep for sweep in SWEEPS if sweep.name == name]
    sweep_all(sweeps=chosen, pace=Pace(), stop=lambda: False, most_seconds=SLICE_SECONDS)


def sweep_run(
    sweep: Sweep, *, pace: Pace, stop: Callable[[], bool], most_seconds: float
) -> SweepReport:
    """Batch after batch, shard by shard, until nothing is due or the time is up."""
    started = time.monotonic()
    machinery.sweep_started(name=sweep.name, at=clock.read())

    def is_over() -> bool:
        return stop() or time.monotonic() - started > most_seconds

    rows, busy = 0, 0
    for shard in sweep.shards_due(clock.read()):
        ended, finished = _drain(sweep, shard, pace, is_over)
        rows += ended
        busy += 0 if finished else 1
    seconds = time.monotonic() - started
    over = is_over()
    if not stop():  # interrupted is no success; out of time is: the sweep works, and goes on
        machinery.sweep_succeeded(name=sweep.name, at=clock.read(), rows=rows)
    DONE(sweep=sweep.name, rows=rows, milliseconds=round(seconds * 1000))
    return SweepReport(sweep.name, rows, seconds, busy, stopped=over)


def _drain(sweep: Sweep, shard: int, pace: Pace, is_over: Callable[[], bool]) -> tuple[int, bool]:
    """(rows ended, whether nothing is left due) in one shard."""
    rows = 0
    while not is_over():
        began = time.monotonic()
        ended = sweep.run_batch(shard=shard, most=pace.batch)
        rows += ended
        if ended == 0:
            return rows, shard not in sweep.shards_due(clock.read())
        pace.rest(rows=ended, took=time.monotonic() - began)
    return rows, False


def _record_failure(sweep: Sweep, error: Exception) -> None:
    FAILED(sweep=sweep.name, error=logs.where(error))
    try:
        machinery.sweep_failed(name=sweep.name, error=logs.where(error))
    except (DatabaseError, InterfaceError):
        return  # the database is away: the log line stands alone
