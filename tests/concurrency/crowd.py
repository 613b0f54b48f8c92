"""Threads for races: many that start at one moment, and crews that work until told to stop.

Each thread has a database connection of its own and closes it at its end.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

from django.db import connections

T = TypeVar("T")
#: Seconds after which a thread that hangs fails its test.
PATIENCE = 60


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Every call in a thread of its own, all released at one moment; their results in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        try:
            barrier.wait(PATIENCE)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(run, call) for call in calls]
        return [future.result(PATIENCE) for future in futures]


class Background:
    """One call in a thread; `result` waits for it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(self._run)

    def _run(self) -> T:
        try:
            return self._call()
        finally:
            connections.close_all()

    def is_done(self) -> bool:
        """Whether it came to its end."""
        return self._future.done()

    def result(self) -> T:
        """What the call returned, or its exception."""
        try:
            return self._future.result(PATIENCE)
        finally:
            self._pool.shutdown(wait=False)


class Crew:
    """Workers that repeat a step until the crew is dismissed, or the step returns False.

        with Crew() as crew:
            crew.add(lambda: submit_one(), 8)
            …

    Leaving the block stops all and raises the first exception of any worker.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def add(self, step: Callable[[], object], workers: int = 1) -> None:
        """Start workers that repeat `step`."""
        for _ in range(workers):
            thread = threading.Thread(target=self._work, args=(step,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self, step: Callable[[], object]) -> None:
        try:
            while not self.stopping.is_set():
                if step() is False:
                    return
        except BaseException as error:
            self._errors.append(error)
            self.stopping.set()
        finally:
            connections.close_all()

    def wait(self) -> None:
        """Until every worker ended by itself."""
        for thread in self._threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                raise AssertionError("a worker did not end")
        if self._errors:
            raise self._errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopping.set()
        if error is None:
            self.wait()
        else:
            for thread in self._threads:
                thread.join(PATIENCE)
