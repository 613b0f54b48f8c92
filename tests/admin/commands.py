"""How tests run commands: in this process, or as an operator would."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from io import StringIO
from typing import Any

from django.core.management import call_command

from tests.conftest import PROJECT, test_database_url


@dataclass(frozen=True)
class Finished:
    """What a process left: its exit code and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Stdout as the one JSON value it must be."""
        return json.loads(self.stdout)


def manage(*arguments: str, **environment: str) -> Finished:
    """`manage.py …` in a process of its own, on this worker's test database."""
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, "DATABASE_URL": test_database_url(), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def answer(*arguments: str) -> Any:
    """The JSON that a command prints, run in this process; a refusal raises."""
    out = StringIO()
    call_command(*arguments, "--json", stdout=out, stderr=StringIO())
    return json.loads(out.getvalue())


def said(*arguments: str) -> str:
    """What a command prints for people, run in this process."""
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=StringIO())
    return out.getvalue()
