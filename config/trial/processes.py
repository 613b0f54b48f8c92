"""Starting processes that cannot outlive the trial."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config.trial.accounts import Account
from config.trial.directory import last_lines, open_log
from config.trial.errors import TrialError
from config.trial.signals import Signals

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: between fork and exec there is no time for it.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Program:
    """A process to keep alive, and how to end it.

    `stop_signals` are tried in order, each with the seconds it is given; SIGKILL comes last in
    any case. Of two waves the higher one ends first: the relay before its servers. With
    `insist` the first signal is repeated, to the whole group, until the process is gone.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    account: Account | None = None
    stop_signals: tuple[tuple[signal.Signals, float], ...] = ((signal.SIGTERM, 10.0),)
    wave: int = 1
    insist: bool = False

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it once, its output appended to its log."""
        log = open_log(self.log)
        try:
            return spawn(
                self.argv,
                env=self.env,
                cwd=self.cwd,
                stdout=log,
                stderr=log,
                account=self.account,
                death_signal=self.stop_signals[0][0],
            )
        finally:
            os.close(log)


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdout: int,
    stderr: int,
    stdin: int = subprocess.DEVNULL,
    account: Account | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own.

    So a Ctrl-C in the terminal reaches the trial alone, which then ends its children in
    order; and what a dead child leaves behind can be ended as a group. `death_signal` is
    what the kernel sends the child if the trial itself is killed (Linux).
    """
    return subprocess.Popen(  # noqa: S603 - the table of programs and nothing else
        argv,
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        # Runs after the change of user, which would clear it. The trial has one thread.
        preexec_fn=partial(_end_with_parent, os.getpid(), death_signal),  # noqa: PLW1509
    )


def _end_with_parent(parent: int, death_signal: int) -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the child and whatever it started; nobody being left is fine."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@dataclass(frozen=True)
class Step:
    """A command of the start-up that runs to its end. Its errors go to the log."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    log: Path
    account: Account | None = None
    stdin: str = ""

    def run(self, signals: Signals) -> tuple[int, str, str]:
        """The exit code, the standard output, and the end of the errors.

        Standard output may hold a secret, so it is never logged. Errors come by way of us:
        on a full disk the log would not hold them. Raises KeyboardInterrupt when a stop was
        asked for; the command is gone by then.
        """
        process = spawn(
            self.argv,
            env=self.env,
            cwd=self.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            account=self.account,
        )
        try:
            output, errors = self._talk(process, signals)
        finally:
            signal_group(process, signal.SIGKILL)
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                pipe.close()
            process.wait()
        with suppress(OSError), os.fdopen(open_log(self.log), "w") as log:
            log.write(errors)
        return process.returncode, output, last_lines(errors)

    def _talk(self, process: subprocess.Popen[bytes], signals: Signals) -> tuple[str, str]:
        question: bytes | None = self.stdin.encode()
        while True:
            signals.check()
            try:
                output, errors = process.communicate(question, timeout=0.1)
                return output.decode(), errors.decode(errors="replace")
            except subprocess.TimeoutExpired:
                question = None  # it is on its way already

    def must(self, signals: Signals, *, what: str) -> str:
        """Run it; its standard output. Raises TrialError, with the reason, when it fails."""
        code, output, errors = self.run(signals)
        if code != 0:
            raise TrialError(f"{what} failed (exit code {code}). The end of {self.log}:\n{errors}")
        return output
