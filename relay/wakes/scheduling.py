"""Many calls in a bounded pool: a few at once to one host, and an end to the whole.

The order is fair. A free thread goes to the host with the fewest calls under way, and among
those to one that answered last time, so that hosts that hang hold no more than their share,
and get it last.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Task(Generic[T]):
    """Something to do at a host. `most` bounds how many run there at once."""

    host: str
    most: int
    rank: int  # hosts of a lower rank come first
    run: Callable[[], T]


@dataclass
class _Host(Generic[T]):
    most: int
    rank: int
    running: int = 0
    waiting: deque[Task[T]] = field(default_factory=deque)


def run_all(
    tasks: Iterable[Task[T]], *, threads: int, start_before: float, end_before: float
) -> list[T]:
    """Run the tasks, none started at `start_before` or later (monotonic seconds).

    Returns the results there are at `end_before`. A task must not raise, and must itself be
    over by then.
    """
    work = _Work(_by_host(tasks), start_before)
    crew = [
        threading.Thread(target=work.carry_out, name="wake", daemon=True)
        for _ in range(min(threads, work.most_at_once()))
    ]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join(max(0.0, end_before - time.monotonic()))
    return work.results_so_far()


class _Work(Generic[T]):
    """What is to be done, shared by the threads that do it."""

    def __init__(self, hosts: dict[str, _Host[T]], start_before: float) -> None:
        self._hosts = hosts
        self._start_before = start_before
        self._results: list[T] = []
        self._changed = threading.Condition()

    def most_at_once(self) -> int:
        """More threads than this would find nothing to do."""
        return sum(min(host.most, len(host.waiting)) for host in self._hosts.values())

    def carry_out(self) -> None:
        """Do one task after another, until none is left that may be begun."""
        while (begun := self._begin()) is not None:
            host, task = begun
            result = task.run()
            with self._changed:
                host.running -= 1
                self._results.append(result)
                self._changed.notify_all()

    def results_so_far(self) -> list[T]:
        with self._changed:
            return list(self._results)

    def _begin(self) -> tuple[_Host[T], Task[T]] | None:
        with self._changed:
            while any(host.waiting for host in self._hosts.values()):
                left = self._start_before - time.monotonic()
                if left <= 0:
                    return None
                host = _next(self._hosts.values())
                if host is not None:
                    host.running += 1
                    return host, host.waiting.popleft()
                self._changed.wait(left)  # each host that has more is at its most
            return None


def _by_host(tasks: Iterable[Task[T]]) -> dict[str, _Host[T]]:
    hosts: dict[str, _Host[T]] = {}
    for task in tasks:
        hosts.setdefault(task.host, _Host(task.most, task.rank)).waiting.append(task)
    return hosts


def _next(hosts: Iterable[_Host[T]]) -> _Host[T] | None:
    free = (host for host in hosts if host.waiting and host.running < host.most)
    return min(free, key=lambda host: (host.rank, host.running), default=None)
