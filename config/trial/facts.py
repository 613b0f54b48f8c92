"""What the trial tells once it is ready: one line of JSON, or a page for a person."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Facts:
    """The addresses, the first credentials, and how a second process joins in."""

    url: str
    admin_url: str
    admin_user: str | None
    admin_password: str | None
    provisioner_token: str | None
    database_url: str
    redis_url: str
    env: dict[str, str]
    pids: dict[str, int]

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def as_page(self, *, data_dir: Path, is_default: bool, color: bool) -> str:
        """For the terminal. `is_default`: `manage.py` finds the env file by itself there."""
        bold, plain = ("\x1b[1m", "\x1b[0m") if color else ("", "")
        unknown = "(not known here; see the hint above)"
        rows = [
            ("API", self.url),
            ("Console", self.admin_url),
            ("  user", self.admin_user or unknown),
            ("  password", self.admin_password or unknown),
            ("Provisioner", self.provisioner_token or unknown),
            ("API docs", f"{self.url}/api/docs/"),
        ]
        width = max(len(label) for label, _ in rows) + 3
        lines = [f"  {label:<{width}}{value}" for label, value in rows]
        source = [] if is_default else [f"  set -a; . {_short(data_dir / 'env')}; set +a"]
        return "\n".join(
            [
                "",
                f"{bold}The relay is running.{plain}",
                "",
                *lines,
                "",
                f"{bold}Try it{plain}, in a second terminal:",
                *source,
                f"  {_short(Path(sys.executable))} manage.py demo",
                "",
                f"Settings and credentials: {_short(data_dir / 'env')}",
                f"Logs:                     {_short(data_dir / 'logs')}/",
                "Ctrl-C stops everything; the data stays.",
                "",
            ]
        )


def _short(path: Path) -> str:
    """A path as one would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
