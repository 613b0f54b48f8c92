"""What a worker may run: the functions marked here, and nothing else.

With RQ whoever can write to Redis can have any importable function called, with JSON as well
as with pickle: a job is the name of a function and its arguments. So the worker runs these
only (services/working.py), and `jobs.py` of an app is where they are.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

from django.db import close_old_connections, connection
from django.utils.module_loading import autodiscover_modules

from config.kernel import logs

Entry = Callable[[Any], None]

FAILED = logs.event("job.failed", "entry", "error", level=logging.ERROR)

_names: set[str] = set()


def entry(function: Entry) -> Entry:
    """Mark a function of one JSON argument as something that a job may name.

    The database connection is looked after around it (django-rq#216), and what it raises ends
    here: RQ would write the traceback, arguments included, to Redis. Nothing is lost, as the
    facts are in PostgreSQL: a lease that ends, a sweep that did not succeed.
    """
    name = f"{function.__module__}.{function.__name__}"

    @functools.wraps(function)
    def run(argument: Any) -> None:
        close_old_connections()
        try:
            function(argument)
        except Exception as error:
            # The job's time limit may have struck in the middle of a statement.
            connection.close()
            FAILED(entry=name, error=logs.where(error))
        finally:
            close_old_connections()

    _names.add(name)
    return run


def discover() -> None:
    """Import the `jobs` of every app, which mark their entries."""
    autodiscover_modules("jobs")


def is_entry(name: str) -> bool:
    """Whether a job may name this function."""
    return name in _names
