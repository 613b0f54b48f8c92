"""JSON as the protocol reads it: strict (PROTOCOL section 1)."""

import json
from typing import Any, NoReturn

from config.kernel.problems import MalformedRequest


class _NotStrictError(ValueError):
    """Something that the standard parser would have let through."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _NotStrictError("a member is there twice")
    return members


def _constant(name: str) -> NoReturn:
    raise _NotStrictError(f"{name} is not JSON")


#: Members and entries of any call at most, and then some: a batch of a hundred has about 600.
_MOST_MARKS = 10_000


def loads_object(raw: bytes) -> dict[str, Any]:
    """The object in `raw`.

    Raises MalformedRequest for anything but UTF-8 JSON whose top level is an object: duplicate
    members, NaN and Infinity, a byte order mark, absurd numbers and nesting included. What has
    more members than any call is not even parsed: it would take seconds to find out the same.
    """
    if sum(map(raw.count, (b",", b"[", b"{"))) > _MOST_MARKS:
        raise MalformedRequest("There is more in it than any call has.")
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError):
        raise MalformedRequest from None
    if not isinstance(value, dict):
        raise MalformedRequest("The top level must be a JSON object.")
    return value


def dumps(value: Any) -> str:
    """Compact JSON, the same text for the same value."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
