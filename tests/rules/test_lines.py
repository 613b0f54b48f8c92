"""How many threads may wait for one queue or one key (DESIGN rule 4.8): the seats."""

import threading
import time
from contextlib import ExitStack

import pytest

from config.kernel import lines as module
from config.kernel.lines import Lines
from config.kernel.problems import (
    IdempotencyInProgress,
    Problem,
    RecipientQuotaExceeded,
    RecipientUnknown,
    StorageUnavailable,
)
from tests.concurrency.crowd import Background, together

KEY, OTHER = "one queue", "another queue"


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine under load may stand still longer than a line may."""
    monkeypatch.setattr(module, "STUCK_AFTER", 5.0)
    monkeypatch.setattr(module, "PATIENCE", 60.0)


def _entries(lines: Lines) -> int:
    return len(lines._lines)


class _Seated:
    """Threads that sit in a line until they are told to leave."""

    def __init__(self, lines: Lines, key: object, count: int) -> None:
        self._leave = threading.Event()
        sitting = threading.Semaphore(0)

        def sit() -> None:
            with lines.place(key, StorageUnavailable):
                sitting.release()
                assert self._leave.wait(30)

        self._threads = [Background(sit) for _ in range(count)]
        for _ in range(count):
            assert sitting.acquire(timeout=10)

    def leave(self) -> None:
        self._leave.set()
        for thread in self._threads:
            thread.result()


@pytest.mark.usefixtures("_patient")
def test_no_more_than_the_seats_are_ever_taken() -> None:
    lines, lock = Lines(seats=3), threading.Lock()
    now = most = 0

    def pass_through() -> None:
        nonlocal now, most
        with lines.place(KEY, StorageUnavailable):
            with lock:
                now += 1
                most = max(most, now)
            time.sleep(0.001)
            with lock:
                now -= 1

    together([pass_through] * 30)
    assert most == 3
    assert _entries(lines) == 0


@pytest.mark.usefixtures("_patient")
def test_a_line_that_moves_lets_everybody_through() -> None:
    """Sixty pass two seats, and each has to wait for those before it: nobody is refused."""
    lines, passed = Lines(seats=2), []

    def pass_through() -> None:
        with lines.place(KEY, StorageUnavailable):
            time.sleep(0.005)
            passed.append(1)

    together([pass_through] * 60)
    assert len(passed) == 60
    assert _entries(lines) == 0


def test_a_line_that_stands_refuses_at_once() -> None:
    lines = Lines(seats=2)
    seated = _Seated(lines, KEY, 2)
    with pytest.raises(StorageUnavailable), lines.place(KEY, StorageUnavailable):
        pass  # whoever comes first may find out that it stands
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(IdempotencyInProgress), lines.place(KEY, IdempotencyInProgress):
            pass
    assert time.monotonic() - began < 0.5  # twenty of them
    with lines.place(OTHER, StorageUnavailable):
        pass  # nobody else notices
    seated.leave()
    with lines.place(KEY, StorageUnavailable):
        pass  # and the line is as new
    assert _entries(lines) == 0


def test_whoever_waits_gets_the_seat_that_becomes_free() -> None:
    lines, order = Lines(seats=1), []
    seated = _Seated(lines, KEY, 1)

    def wait() -> None:
        with lines.place(KEY, StorageUnavailable):
            order.append("waited")

    waiting = Background(wait)
    seated.leave()
    waiting.result()
    assert order == ["waited"]


def test_there_is_at_least_one_seat() -> None:
    lines = Lines(seats=0)
    with lines.place(KEY, StorageUnavailable):
        pass


def test_one_thread_may_sit_in_several_lines() -> None:
    lines = Lines(seats=1)
    with ExitStack() as stack:
        for key in (KEY, OTHER, 3):
            stack.enter_context(lines.place(key, StorageUnavailable))
        assert _entries(lines) == 3
    assert _entries(lines) == 0


@pytest.mark.parametrize(
    "error", [StorageUnavailable(), RecipientUnknown(), RecipientQuotaExceeded(), ValueError()]
)
def test_an_error_gives_the_seat_back_and_is_passed_on(error: Exception) -> None:
    lines = Lines(seats=1)
    for _ in range(3):
        with pytest.raises(type(error)), lines.place(KEY, StorageUnavailable):
            raise error
    assert _entries(lines) == 0


@pytest.mark.parametrize(
    ("problem", "moves"),
    [
        (RecipientUnknown(), True),  # an answer is an answer
        (RecipientQuotaExceeded(), True),
        (StorageUnavailable(), False),  # it gave up: the line did not move
        (IdempotencyInProgress(), False),
    ],
)
def test_a_refusal_moves_the_line_and_giving_up_does_not(problem: Problem, moves: bool) -> None:
    lines = Lines(seats=2)
    seated = _Seated(lines, KEY, 1)
    line = lines._lines[KEY]
    line.moved_at = before = time.monotonic() - 10
    with pytest.raises(type(problem)), lines.place(KEY, StorageUnavailable):
        raise problem
    assert (line.moved_at > before) is moves
    seated.leave()


def test_no_entry_is_left_of_lines_that_nobody_stands_in() -> None:
    """A million devices must not leave a million entries; those who were refused neither."""
    lines = Lines(seats=1)
    for device in range(1000):
        with lines.place(device, StorageUnavailable):
            pass
    seated = _Seated(lines, KEY, 1)

    def refused() -> bool:
        try:
            with lines.place(KEY, StorageUnavailable):
                return False
        except StorageUnavailable:
            return True

    assert all(together([refused] * 20))
    assert _entries(lines) == 1
    seated.leave()
    assert _entries(lines) == 0
