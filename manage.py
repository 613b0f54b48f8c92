#!/usr/bin/env python
"""The operators' entry: every command of the relay."""

import os
import sys
from pathlib import Path

from config.trial.envfile import read_env_file

TRIAL_ENV = Path(__file__).resolve().parent / ".relay" / "env"


def load_trial_environment() -> None:
    """Without DATABASE_URL, use what `manage.py up` left in the default data directory.

    So that `manage.py demo` in a second terminal just works. `up` itself decides by
    DATABASE_URL whether to start a PostgreSQL, so it must not see the trial's.
    """
    wants_own = "DATABASE_URL" in os.environ or "DATABASE_URL_FILE" in os.environ
    if wants_own or sys.argv[1:2] == ["up"] or not TRIAL_ENV.exists():
        return
    for name, value in read_env_file(TRIAL_ENV).items():
        os.environ.setdefault(name, value)


def main() -> None:
    load_trial_environment()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
