"""What `limits` and `retention` share: their options and their tables."""

import argparse
import re
from collections.abc import Iterable
from typing import Any

from django.core.management.base import CommandParser
from rich.console import RenderableType

from adminui.policies import Setting
from adminui.selectors.policies import PolicyInForce, SettingInForce
from config.commands import Options, in_minutes, table

Settings = Iterable[SettingInForce]

MORE = "What is not named stays as it is. The change is in force everywhere within 5 seconds."
#: Off is None, so not being named must be something else.
NOT_GIVEN: Any = object()
_WHOLE = re.compile(r"-?[0-9]{1,19}")


def add_settings(parser: CommandParser, settings: Iterable[Setting]) -> None:
    """An option for each setting, and the reason."""
    for setting in settings:
        parser.add_argument(
            setting.option,
            type=whole_or_off if setting.optional else whole,
            default=NOT_GIVEN,
            metavar="N|off" if setting.optional else "N",
            help=f"{setting.label}: {setting.bounds}",
        )
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why, for the audit log (required)"
    )


def changes_of(options: Options, names: Iterable[str]) -> dict[str, Any]:
    """The settings that the command line names."""
    given = {name: options.get(name, NOT_GIVEN) for name in names}
    return {name: value for name, value in given.items() if value is not NOT_GIVEN}


def policy_table(policy: PolicyInForce) -> RenderableType:
    """A policy as operators read it."""
    return table(
        ("Setting", "In force", "Allowed", "Set with"),
        [
            (setting.label, setting.words, setting.allowed, setting.option)
            for setting in policy.settings
        ],
        title=f"{policy.title}, version {policy.version}",
        note=f"In force since {in_minutes(policy.since)}.",
        numbers=("In force",),
    )


def changes_table(title: str, before: Settings, after: Settings) -> RenderableType:
    """What a new version changed."""
    pairs = zip(before, after, strict=True)
    return table(
        ("Setting", "Before", "Now"),
        [(new.label, old.words, new.words) for old, new in pairs if old.value != new.value],
        title=title,
        note="In force in every process within 5 seconds.",
        numbers=("Before", "Now"),
    )


def whole(text: str) -> int:
    """A whole number, as digits."""
    if not _WHOLE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def whole_or_off(text: str) -> int | None:
    """A whole number, or the word off."""
    return None if text == "off" else whole(text)


def versions(text: str) -> list[int]:
    """Whole numbers with commas between."""
    return [whole(part.strip()) for part in text.split(",")]
