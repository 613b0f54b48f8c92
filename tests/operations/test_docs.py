"""docs/operations says what is there: every setting as it is declared, every command."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from config.kernel.logs import EVENTS
from config.settings import _TIME_LIMITS
from relay.selectors.gauges import GAUGES
from tests.conftest import PROJECT

SETTINGS = PROJECT / "docs" / "operations" / "settings.md"
COMMANDS = PROJECT / "docs" / "operations" / "commands.md"
OUTBOX = PROJECT / "docs" / "operations" / "outbox.md"

_DECLARED = """
import json
import config.settings
from config.environment import DECLARED
print(json.dumps({s.name: [s.value, s.allowed, s.secret] for s in DECLARED.values()}))
"""


@cache
def declared() -> dict[str, tuple[Any, str, bool]]:
    """Default, allowed values and secrecy of every setting, in a process that nobody set up."""
    done = subprocess.run(
        [sys.executable, "-c", _DECLARED],
        cwd=PROJECT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {name: tuple(facts) for name, facts in json.loads(done.stdout).items()}


def rows(text: str) -> list[list[str]]:
    """The cells of every table row that begins with code."""
    lines = re.findall(r"^\| (`.+) \|$", text, re.MULTILINE)
    return [line.split(" | ") for line in lines]


def documented() -> dict[str, list[str]]:
    """The row of every setting."""
    found = [row for row in rows(SETTINGS.read_text("utf-8")) if re.match("`[A-Z]", row[0])]
    names = [row[0].strip("`") for row in found]
    assert len(set(names)) == len(names), "a setting is there twice"
    return dict(zip(names, found, strict=True))


def written(default: Any) -> str:
    """A default as the page writes it."""
    if default is None or default == []:
        return "–"
    if isinstance(default, bool):
        return "`yes`" if default else "`no`"
    return f"`{','.join(default) if isinstance(default, list) else default}`"


def test_the_settings_page_has_every_setting_and_no_other() -> None:
    assert set(documented()) == set(declared())


def test_the_settings_page_tells_defaults_and_what_is_allowed() -> None:
    told = {name: (row[1], row[2]) for name, row in documented().items()}
    assert told == {name: (written(value), text) for name, (value, text, _) in declared().items()}


def test_the_settings_page_tells_secrets_apart() -> None:
    told = {name for name, row in documented().items() if "A secret" in row[3]}
    assert told == {name for name, (_, _, secret) in declared().items() if secret}


def test_the_settings_page_tells_the_time_limits_of_each_role() -> None:
    roles = "|".join(_TIME_LIMITS)
    told = {
        role: tuple(0 if cell == "none" else int(cell.removesuffix(" s")) * 1000 for cell in cells)
        for first, *cells in rows(SETTINGS.read_text("utf-8"))
        if len(cells) == 3
        for role in re.findall(f"`({roles})`", first)
    }
    assert told == _TIME_LIMITS


def commands() -> set[str]:
    """Every command of the house."""
    files = PROJECT.glob("*/management/commands/*.py")
    return {file.stem for file in files if not file.stem.startswith("_")}


def test_the_commands_page_has_every_command_and_no_other() -> None:
    found = rows(COMMANDS.read_text("utf-8"))
    assert {re.split("[ `]", row[0][1:])[0] for row in found} == commands()


def test_the_outbox_page_names_metrics_and_log_lines_that_exist() -> None:
    for module in ("outbox.services.working", "outbox.services.dispatching"):
        import_module(module)
    page = OUTBOX.read_text("utf-8")
    told = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", page.partition("## Alarms")[2], re.MULTILINE)
    names = {name for cell in told for name in re.findall("`([^`]+)`", cell)}
    metrics = {name for name in names if name.startswith("relay_")}
    assert metrics <= {family.name for family in GAUGES.collect()}
    assert len(metrics) == 5
    assert names - metrics <= set(EVENTS)
    assert len(names - metrics) == 4


def test_what_the_pages_link_to_is_there() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    missing = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert missing == []


def test_the_tests_that_an_adr_leans_on_are_there() -> None:
    for page in (PROJECT / "docs" / "adr").glob("0*.md"):
        for name in re.findall(r"`((?:[\w/]+/)?test_\w+\.py)`", page.read_text("utf-8")):
            found = list((PROJECT / "tests").rglob(Path(name).name))
            assert any(str(path).endswith(name) for path in found), f"{page.name}: {name}"
