"""Logs as an allow-list (DESIGN rule 4.9): a line is an event's name and its declared fields.

    REFUSED = logs.event("request.refused", "code", "status", "device")
    REFUSED(code="RATE_LIMITED", status=429, device=pseudonyms.of_device(device_id))

What was not declared is left out and counted, so that a careless call can lose a detail but
never leak one. What libraries log is reduced to the logger's name and the level: their texts
quote requests, statements and addresses.
"""

import logging
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import structlog

_HOUSE = Path(__file__).resolve().parents[2]
_LONGEST = 200

#: Every declared event: name to fields. The reference in the docs is made from it.
EVENTS: dict[str, frozenset[str]] = {}


def event(name: str, *fields: str, level: int = logging.INFO) -> Callable[..., None]:
    """Declare an event once, at import; returns the function that logs it."""
    allowed = frozenset(fields)
    if EVENTS.setdefault(name, allowed) != allowed:
        raise ValueError(f"{name} is declared twice with different fields")
    logger = logging.getLogger("relay")

    def log(**values: Any) -> None:
        if logger.isEnabledFor(level):
            logger.log(level, name, extra={"relay_fields": _declared(allowed, values)})

    return log


def _declared(allowed: frozenset[str], values: dict[str, Any]) -> dict[str, Any]:
    kept = {name: _plain(value) for name, value in values.items() if name in allowed}
    if len(kept) < len(values):
        kept["undeclared"] = len(values) - len(kept)
    return kept


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)[:_LONGEST]


def where(error: BaseException) -> str:
    """`Class at file:line` of the innermost frame of ours; never the error's text."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if _is_ours(frame.filename)]
    if not ours:
        return type(error).__name__
    place = Path(ours[-1].filename).relative_to(_HOUSE)
    return f"{type(error).__name__} at {place}:{ours[-1].lineno}"


def _is_ours(filename: str) -> bool:
    path = Path(filename)
    return path.is_relative_to(_HOUSE) and ".venv" not in path.parts


def _reduce(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep the declared fields of our events, and only the origin of everyone else's."""
    record: logging.LogRecord = line["_record"]
    kept: dict[str, Any] = {"timestamp": line.get("timestamp"), "level": record.levelname.lower()}
    fields = getattr(record, "relay_fields", None)
    if record.name == "relay" and fields is not None:
        return {**kept, "event": record.msg, **fields}
    kept |= {"event": "library", "logger": record.name}
    # structlog takes the exception from the record and puts it into the line.
    _, error, _ = line.get("exc_info") or record.exc_info or (None, None, None)
    if error is not None:
        kept["error"] = where(error)
    return kept


def configuration(level: str) -> dict[str, Any]:
    """Django's LOGGING: one handler on stderr, JSON lines, everything through the allow-list."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "allow_list": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": [
                    structlog.processors.TimeStamper(fmt="iso", utc=True),
                ],
                "processors": [
                    _reduce,
                    structlog.processors.JSONRenderer(sort_keys=False),
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "allow_list"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "relay": {"level": level},
            "django": {"handlers": [], "level": "WARNING", "propagate": True},
            # Every refusal has its own line already (config.middleware).
            "django.request": {"handlers": [], "level": "ERROR", "propagate": True},
        },
    }
