"""Ports: is the wanted one free, and which one else."""

import random
import socket
from contextlib import suppress

from config.trial.errors import TrialError

# Below the range that Linux takes outgoing connections from. A busy client could otherwise
# sit on a server's port in the moment between its death and its restart.
_CANDIDATES = range(20_000, 32_000)


def numeric(host: str) -> str:
    """The address that a name stands for, IPv4 where it has both. Raises OSError for none."""
    found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def _try_bind(host: str, port: int) -> int:
    """Bind once and let go; the bound port. Raises OSError when that is not possible."""
    address = numeric(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT does not count
        probe.bind((address, port))
        return int(probe.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    try:
        _try_bind(host, port)
    except OSError:
        return False
    return True


def free_port(host: str, *, preferred: int | None = None) -> int:
    """The preferred port when it is free, or any other."""
    choice = random.sample(_CANDIDATES, 50)
    for port in choice if preferred is None else [preferred, *choice]:
        if is_free(host, port):
            return port
    return _try_bind(host, 0)


def require(host: str, port: int) -> None:
    """Raise TrialError, with the reason, when nothing could listen there."""
    try:
        _try_bind(host, port)
    except socket.gaierror as error:
        raise TrialError(
            f"--host {host} is not an address of this machine: {error.strerror}.", exit_code=2
        ) from error
    except OSError as error:
        raise TrialError(
            f"Cannot listen on {host} port {port}: {error.strerror}. "
            "Choose another with --port, or --port 0 for any free one."
        ) from error


def accepts(host: str, port: int) -> bool:
    """Whether somebody listens there and takes a connection."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
