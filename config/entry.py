"""`manage.py` itself: which commands there are, and what it says of one that is not."""

import os
import shutil
import sys
import textwrap
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from config.trial.envfile import read_env_file

_APPS = ("config", "quotas", "idempotency", "outbox", "relay", "adminui")
_DEFAULT_DATA_DIR = Path(__file__).resolve().parent.parent / ".relay"


def main(argv: list[str]) -> None:
    """Run the command line."""
    load_trial_environment(argv)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    _utility(argv).execute()


def load_trial_environment(argv: list[str]) -> None:
    """Without DATABASE_URL, use what `manage.py up` left in its data directory.

    That is RELAY_DATA_DIR's or the default one, so that `manage.py demo` in a second terminal
    just works. `up` itself decides by DATABASE_URL whether to start a PostgreSQL, so it must
    not see the trial's.
    """
    wants_own = "DATABASE_URL" in os.environ or "DATABASE_URL_FILE" in os.environ
    if wants_own or argv[1:2] == ["up"]:
        return
    named = os.environ.get("RELAY_DATA_DIR")
    file = Path(named or _DEFAULT_DATA_DIR) / "env"
    if named and not file.exists():
        _stop(f"RELAY_DATA_DIR={named!r} is not possible: no `manage.py up` left its env there.")
    try:
        values = read_env_file(file)
    except (OSError, ValueError) as error:
        _stop(f"{error}.")
    for name, value in values.items():
        os.environ.setdefault(name, value)


def _stop(text: str) -> Any:
    sys.stderr.write(f"Error: {text}\n")
    raise SystemExit(2)


def _utility(argv: list[str]) -> Any:
    # Not at the top: the trial's environment comes before whatever Django reads.
    from django.core.management import ManagementUtility, get_commands, load_command_class

    class Relay(ManagementUtility):
        """Django's, with our commands first and one line for a command that is not there."""

        def main_help_text(self, commands_only: bool = False) -> str:
            if commands_only:
                return super().main_help_text(commands_only=True)
            ours = {name: app for name, app in get_commands().items() if app in _APPS}
            rows = {name: load_command_class(app, name) for name, app in sorted(ours.items())}
            listed = [
                _row(name, command.help)
                for name, command in rows.items()
                if not getattr(command, "stands_in_the_way", False)
            ]
            return "\n".join([_HEAD, "", *listed, "", _TAIL])

        def fetch_command(self, subcommand: str) -> Any:
            known = get_commands()
            if subcommand not in known:
                near = get_close_matches(subcommand, known, 1)
                hint = f" Did you mean {near[0]}?" if near else ""
                _stop(f"There is no command {subcommand}.{hint} `manage.py help` lists them.")
            return super().fetch_command(subcommand)

    return Relay(argv)


_HEAD = "The relay's commands. `manage.py COMMAND --help` tells more of each."
_TAIL = textwrap.fill(
    "Of Django's own, `migrate`, `showmigrations`, `check` and `dbshell` are of use to operators; "
    "`manage.py help --commands` names them all. What others of them change is in no audit log.",
    79,
)


def _row(name: str, help: str) -> str:
    first = help.partition(". ")[0].rstrip(".")
    width = min(shutil.get_terminal_size().columns, 100) - 1
    return textwrap.fill(first, width, initial_indent=f"  {name:<19}", subsequent_indent=" " * 21)
