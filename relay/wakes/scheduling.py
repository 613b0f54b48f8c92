"""Many calls in a bounded pool: a few at once to one host, and an end to the whole.

The order is fair. A free thread goes to the host with the fewest calls under way, and among
those to one that answered last time, so that hosts that hang hold no more than their share,
and get it last.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
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
    hosts = _by_host(tasks)
    most = min(threads, sum(len(host.waiting) for host in hosts.values()))
    results: list[T] = []
    running: dict[Future[T], _Host[T]] = {}
    pool = ThreadPoolExecutor(max_workers=max(1, most), thread_name_prefix="wake")
    try:
        while True:
            while len(running) < most and time.monotonic() < start_before:
                host = _next(hosts.values())
                if host is None:
                    break
                running[pool.submit(host.waiting.popleft().run)] = host
                host.running += 1
            left = end_before - time.monotonic()
            if not running or left <= 0:
                return results
            for future in wait(running, left, FIRST_COMPLETED).done:
                running.pop(future).running -= 1
                results.append(future.result())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _by_host(tasks: Iterable[Task[T]]) -> dict[str, _Host[T]]:
    hosts: dict[str, _Host[T]] = {}
    for task in tasks:
        hosts.setdefault(task.host, _Host(task.most, task.rank)).waiting.append(task)
    return hosts


def _next(hosts: Iterable[_Host[T]]) -> _Host[T] | None:
    free = (host for host in hosts if host.waiting and host.running < host.most)
    return min(free, key=lambda host: (host.rank, host.running), default=None)
