"""Keeps the trial's processes alive, and ends them in order."""

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from config.trial.directory import tail
from config.trial.errors import TrialError
from config.trial.processes import Program, signal_group
from config.trial.signals import Signals

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
#: A process that lived so long was healthy: its next death starts the count anew.
_HEALTHY_SECONDS = 30.0
_INSIST_SECONDS = 0.5
#: So many deaths in a row before the trial is up mean that it never will be.
_HOPELESS_DEATHS = 3


@dataclass
class _Child:
    program: Program
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    log_start: int = 0
    deaths: int = 0
    cause: str = ""
    due: float = 0.0

    def start(self) -> None:
        log = self.program.log
        self.log_start = log.stat().st_size if log.exists() else 0
        self.process, self.started = self.program.spawn(), monotonic()

    def died(self, cause: str) -> None:
        """Set the time of the restart: the pause doubles with each early death."""
        if monotonic() - self.started > _HEALTHY_SECONDS:
            self.deaths = 0
        pause = min(_FIRST_PAUSE * 2.0 ** min(self.deaths, 10), _LONGEST_PAUSE)
        self.process, self.cause, self.due = None, cause, monotonic() + pause
        self.deaths += 1


class Supervisor:
    """Starts programs, restarts the dead, stops them all. Single-threaded."""

    def __init__(self, signals: Signals, say: Callable[[str], None]) -> None:
        self._signals = signals
        self._say = say
        self._children: list[_Child] = []

    @property
    def pids(self) -> dict[str, int]:
        """Name to pid of every process that runs now."""
        return {child.program.name: child.process.pid for child in self._children if child.process}

    def start(self, program: Program) -> None:
        child = _Child(program)
        self._children.append(child)
        try:
            child.start()
        except (OSError, subprocess.SubprocessError) as error:
            raise TrialError(f"{program.name} cannot be started: {error}.") from error

    def wait_until(self, ready: Callable[[], bool], *, what: str, seconds: float) -> None:
        """Supervise until `ready` says so.

        Raises TrialError when a process keeps dying, or the time is up; KeyboardInterrupt when
        a stop was asked for.
        """
        deadline = monotonic() + seconds
        while not ready():
            self._revive()
            for child in self._children:
                if child.deaths >= _HOPELESS_DEATHS:
                    raise TrialError(_obituary(child))
            if monotonic() > deadline:
                raise TrialError(f"{what} within {seconds:.0f} s; see {self._logs()}.")
            self._signals.wait(0.02)

    def run(self) -> None:
        """Restart whatever dies, until KeyboardInterrupt: a stop was asked for."""
        while True:
            self._revive()
            pauses = [child.due - monotonic() for child in self._children if not child.process]
            self._signals.wait(min(pauses, default=1.0))

    def stop(self) -> None:
        """End every process, wave by wave. Each further signal cuts one wait short."""
        for wave in sorted({child.program.wave for child in self._children}, reverse=True):
            _Ending(
                [child for child in self._children if child.program.wave == wave],
                self._signals,
            ).finish()
        self._children.clear()

    def _revive(self) -> None:
        for child in self._children:
            if child.process and child.process.poll() is not None:
                # A granian whose main process is gone leaves workers that hold the port.
                signal_group(child.process, signal.SIGKILL)
                child.died(_cause(child.process.returncode))
            if child.process is None and monotonic() >= child.due:
                self._restart(child)

    def _restart(self, child: _Child) -> None:
        name, cause = child.program.name, child.cause
        try:
            child.start()
        except (OSError, subprocess.SubprocessError) as error:
            child.died(str(error))
            self._say(f"{name} cannot be started again: {error}")
        else:
            self._say(f"{name} ended ({cause}); started again, pid {self.pids[name]}")

    def _logs(self) -> str:
        return str(self._children[-1].program.log.parent)


class _Ending:
    """The end of one wave: ask, ask harder, kill."""

    def __init__(self, children: list[_Child], signals: Signals) -> None:
        self._running = [(child.program, child.process) for child in children if child.process]
        self._signals = signals

    def finish(self) -> None:
        for attempt in range(max((len(p.stop_signals) for p, _ in self._running), default=0)):
            if attempt == 0 or self._alive():
                self._wait(self._ask(attempt))
        for _, process in self._running:
            signal_group(process, signal.SIGKILL)
            process.wait()

    def _ask(self, attempt: int) -> float:
        """Send everyone who is left their signal; the seconds to wait for them."""
        seconds = 0.0
        for program, process in self._alive():
            if attempt < len(program.stop_signals):
                number, patience = program.stop_signals[attempt]
                process.send_signal(number)
                seconds = max(seconds, patience)
        return seconds

    def _wait(self, seconds: float) -> None:
        deadline, stops = monotonic() + seconds, self._signals.stops
        insist_at = monotonic() + _INSIST_SECONDS
        while self._alive() and monotonic() < deadline and self._signals.stops == stops:
            self._signals.pause(0.1)
            if monotonic() > insist_at:
                insist_at += _INSIST_SECONDS
                for program, process in self._alive():
                    if program.insist:
                        signal_group(process, program.stop_signals[0][0])

    def _alive(self) -> list[tuple[Program, subprocess.Popen[bytes]]]:
        return [(program, process) for program, process in self._running if process.poll() is None]


def _cause(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def _obituary(child: _Child) -> str:
    log = child.program.log
    reason = tail(log, since=child.log_start)
    head = f"{child.program.name} does not stay up ({child.cause}). The end of {log}:"
    return f"{head}\n{reason}" if reason else head
