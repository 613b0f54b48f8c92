"""The env file: KEY=VALUE lines that a shell can source and `manage.py` can read.

Values are quoted for the shell and read back by the shell's rules, so that any text survives
the way there and back, line breaks included.
"""

import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = "# Written by `manage.py up` at each start. Holds secrets: keep it private.\n"


def read_env_file(path: Path) -> dict[str, str]:
    """The variables in the file, in its order; empty when there is no such file.

    Raises ValueError, naming the file, for what is no list of assignments.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    values: dict[str, str] = {}
    try:
        for word in shlex.split(text, comments=True):
            name, equals, value = word.partition("=")
            if not equals or not _NAME.fullmatch(name):
                raise ValueError("expected KEY=VALUE")
            values[name] = value
    except ValueError as error:
        raise ValueError(f"{path} is not a list of KEY=VALUE lines: {error}") from error
    return values


def write_env_file(path: Path, values: Mapping[str, str]) -> None:
    """Replace the file at once, readable by its owner alone (mode 0600)."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in values.items()]
    write_private(path, _HEADER + "".join(lines))


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically and durably, with mode 0600 from its first byte on."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            leave_to_owner(descriptor, path.parent)
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def leave_to_owner(descriptor: int, directory: Path) -> None:
    """What root makes in a user's directory is the user's, or one `sudo` locks them out."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
