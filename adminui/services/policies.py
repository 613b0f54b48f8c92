"""What a change of policy must satisfy before it becomes a version."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.core.exceptions import ValidationError

from adminui.policies import PROTOCOL_VERSIONS, PROTOCOL_VERSIONS_ALLOWED, Setting
from quotas.models import check_protocol_versions

LONGEST_REASON = 500


class PolicyRefused(Exception):  # noqa: N818 - the domain's word
    """Why a change of policy was not made, in words for the admin."""


class PolicyMistaken(PolicyRefused):
    """The change itself can never be made: a value out of bounds, or no reason."""


def checked_reason(reason: str) -> str:
    """The reason without white space around it. Raises PolicyRefused.

    Required, as the audit log has to say why; on one printable line, as it is shown there.
    """
    reason = reason.strip()
    if not reason:
        raise PolicyMistaken("A reason is needed: the audit log tells it to those who come later.")
    if len(reason) > LONGEST_REASON:
        raise PolicyMistaken(
            f"The reason has {len(reason)} characters; at most {LONGEST_REASON} are allowed."
        )
    if not reason.isprintable():
        raise PolicyMistaken("The reason must be one line of printable characters.")
    return reason


def check_changes(changes: Mapping[str, Any], settings: Iterable[Setting]) -> None:
    """Refuse what is no setting, and what is out of bounds. Raises PolicyRefused."""
    known = {setting.name: setting for setting in settings}
    for name, value in changes.items():
        if name not in known:
            raise PolicyMistaken(f"There is no setting {name}.")
        if not known[name].admits(value):
            raise _out_of_bounds(known[name], value)


def checked_versions(versions: Iterable[int]) -> list[int]:
    """Protocol versions in rising order. Raises PolicyRefused."""
    rising = sorted(versions)
    try:
        check_protocol_versions(rising)
    except ValidationError as error:
        raise PolicyMistaken(
            f"{PROTOCOL_VERSIONS} = {','.join(map(str, rising)) or 'none'} is not allowed: "
            f"{PROTOCOL_VERSIONS_ALLOWED}, none twice."
        ) from error
    return rising


def differences(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `changes` that changes something. Raises PolicyRefused when nothing does."""
    if not changes:
        raise PolicyMistaken("Nothing to change: name at least one setting.")
    different = {name: value for name, value in changes.items() if before[name] != value}
    if not different:
        held = ", ".join(f"{name} = {_shown(value)}" for name, value in changes.items())
        raise PolicyRefused(f"Nothing to change: {held} already holds.")
    return different


def _out_of_bounds(setting: Setting, value: object) -> PolicyMistaken:
    return PolicyMistaken(f"{setting.name} = {_shown(value)} is not allowed: {setting.bounds}.")


def _shown(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
