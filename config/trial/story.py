"""The start-up of the trial, in order, from nothing to a relay that answers."""

import json
import os
import secrets
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from io import TextIOBase
from pathlib import Path
from typing import Self

from config.trial import ports, variables
from config.trial.directory import DataDirectory, claimed
from config.trial.envfile import write_env_file
from config.trial.errors import TrialError
from config.trial.facts import Facts
from config.trial.processes import Step
from config.trial.programs import PROJECT, manage, relay_programs
from config.trial.servers import Servers
from config.trial.signals import Signals
from config.trial.supervisor import Supervisor

DEFAULT_DATA_DIR = PROJECT / ".relay"


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    host: str
    port: int
    data_dir: Path
    as_json: bool

    @classmethod
    def checked(cls, host: str, port: str, data_dir: Path, as_json: bool) -> Self:
        """Raises TrialError for a port that is none."""
        if not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise TrialError(f"--port {port}: a port is a number from 0 to 65535.", exit_code=2)
        return cls(host, int(port), data_dir.expanduser().resolve(), as_json)


def run(options: Options, *, stdout: TextIOBase) -> None:
    """Start the trial and stay until a signal ends it.

    Raises TrialError when it cannot start. Everything it started is gone when it returns.
    """
    with Signals() as signals:
        try:
            with claimed(options.data_dir) as directory:
                Trial(options, directory, signals, stdout).run()
        except KeyboardInterrupt:
            pass  # asked to stop, and did: that is success
        except OSError as error:
            raise TrialError(f"{error.filename or options.data_dir}: {error.strerror}.") from error


def say(text: str) -> None:
    """One line of progress. A terminal that is gone must not end the trial."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


@dataclass
class Trial:
    """One run of `manage.py up`: its steps, and what they hand on to each other."""

    options: Options
    directory: DataDirectory
    signals: Signals
    stdout: TextIOBase
    environment: Mapping[str, str] = field(
        default_factory=lambda: variables.operators_environment(os.environ)
    )

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.signals, say)
        self.database_url = variables.given(self.environment, "DATABASE_URL")
        self.redis_url = variables.given(self.environment, "REDIS_URL")
        self.memory = variables.recall(self.directory, self.database_url)

    def run(self) -> None:
        port = self._take_port()
        try:
            values = self._settings(self._start_servers(), port)
            self._migrate(values)
            self._start_relay(values, port)
            self._make_first_accounts(values)
            self._wait_for_relay(values)
            self._tell(values)
            self.supervisor.run()
        except KeyboardInterrupt:
            say("Stopping …")
            raise
        finally:
            self.supervisor.stop()

    def _take_port(self) -> int:
        host, port = self.options.host, self.options.port
        if port == 0:
            ports.require(host, port)
            return ports.free_port(host)
        # What a killed trial left behind is ending right now: give it the time.
        for _ in range(100 if self.directory.after_crash else 0):
            if ports.is_free(host, port):
                break
            self.signals.wait(0.1)
        ports.require(host, port)
        return port

    def _start_servers(self) -> dict[str, str]:
        servers = Servers(self.directory, self.supervisor, self.signals, say, self.memory)
        return servers.start(
            with_postgres=self.database_url is None, with_valkey=self.redis_url is None
        )

    def _settings(self, servers: Mapping[str, str], port: int) -> dict[str, str]:
        """What every process of this trial shares, in the env file from now on."""
        computed = {
            **servers,
            "ALLOWED_HOSTS": variables.allowed_hosts(self.environment, self.options.host),
            "RELAY_TRIAL": "1",
            "RELAY_URL": variables.base_url(self.options.host, port),
            "RELAY_DATA_DIR": str(self.directory.root),
        }
        if "SECRET_KEY" not in self.memory and not variables.given(self.environment, "SECRET_KEY"):
            computed["SECRET_KEY"] = secrets.token_urlsafe(48)
        values = variables.compose(self.environment, self.memory, computed)
        write_env_file(self.directory.env_file, values)
        return values

    def _manage(self, values: Mapping[str, str], *arguments: str, stdin: str = "") -> Step:
        environment = variables.child_environment(self.environment, values)
        return manage(self.directory, environment, *arguments, stdin=stdin)

    def _migrate(self, values: Mapping[str, str]) -> None:
        say("Migrating …")
        self._manage(values, "migrate", "--no-input").must(self.signals, what="Migrating")

    def _start_relay(self, values: Mapping[str, str], port: int) -> None:
        say(f"Starting the relay on {values['RELAY_URL']} …")
        if variables.is_wildcard(self.options.host):
            names = values["ALLOWED_HOSTS"]
            say(f"It listens on every address, and answers to {names}: ALLOWED_HOSTS adds names.")
        environment = variables.child_environment(self.environment, values)
        for program in relay_programs(self.directory, environment, self.options.host, port):
            self.supervisor.start(program)

    def _make_first_accounts(self, values: dict[str, str]) -> None:
        """An admin and a provisioner, once; what is made is written down at once."""
        dead = self._forget_dead(values)
        if variables.ADMIN_PASSWORD not in values:
            made = self._create(values, "admin", "create", "--username", "admin", "--json")
            if made:
                values[variables.ADMIN_USER] = made["username"]
                values[variables.ADMIN_PASSWORD] = made["password"]
                write_env_file(self.directory.env_file, values)
            else:
                say("  manage.py admin reset-password --username admin")
        if variables.PROVISIONER_TOKEN not in values:
            # The token of that name may be at work elsewhere: it is not for us to change.
            name = f"trial {secrets.token_hex(3)}" if "provisioner" in dead else "trial"
            made = self._create(values, "provisioner", "create", "--name", name, "--json")
            if made:
                values[variables.PROVISIONER_TOKEN] = made["token"]
                write_env_file(self.directory.env_file, values)
            else:
                say("  manage.py provisioner rotate --name trial")

    def _forget_dead(self, values: dict[str, str]) -> set[str]:
        """Forget the credentials that were changed since; which kinds they are of."""
        names = {
            "admin_user": variables.ADMIN_USER,
            "admin_password": variables.ADMIN_PASSWORD,
            "provisioner_token": variables.PROVISIONER_TOKEN,
        }
        known = {key: values[name] for key, name in names.items() if name in values}
        if not known:
            return set()
        check = self._manage(values, "credentials_check", "--json", stdin=json.dumps(known))
        holds = json.loads(check.must(self.signals, what="Checking the first credentials"))
        dead = {kind for kind, good in holds.items() if not good}
        for kind in sorted(dead):
            say(f"The first {kind}'s secret was changed or ended since.")
        if "admin" in dead:
            del values[variables.ADMIN_PASSWORD]
        if "provisioner" in dead:
            del values[variables.PROVISIONER_TOKEN]
        if dead:
            write_env_file(self.directory.env_file, values)
        return dead

    def _create(self, values: Mapping[str, str], kind: str, *arguments: str) -> dict[str, str]:
        """What the command made; empty when this database has one from before."""
        code, output, errors = self._manage(values, kind, *arguments).run(self.signals)
        if code == 0:
            return dict(json.loads(output))
        if "exists" not in errors.lower():
            raise TrialError(f"Making the first {kind} failed:\n{errors}")
        say(f"This database has its {kind} from before, whose secret is not known here. To set it:")
        return {}

    def _wait_for_relay(self, values: Mapping[str, str]) -> None:
        self.supervisor.wait_until(
            lambda: _answers(values["RELAY_URL"] + "/readyz"),
            what=f"{values['RELAY_URL']}/readyz did not answer",
            seconds=60,
        )

    def _tell(self, values: Mapping[str, str]) -> None:
        facts = Facts(
            url=values["RELAY_URL"],
            admin_url=values["RELAY_URL"] + "/admin/",
            admin_user=values.get(variables.ADMIN_USER),
            admin_password=values.get(variables.ADMIN_PASSWORD),
            provisioner_token=values.get(variables.PROVISIONER_TOKEN),
            database_url=self.database_url or values["DATABASE_URL"],
            redis_url=self.redis_url or values["REDIS_URL"],
            env=dict(values),
            pids=self.supervisor.pids,
        )
        if self.options.as_json:
            text = facts.as_json()
        else:
            text = facts.as_page(
                data_dir=self.directory.root,
                is_default=self.directory.root == DEFAULT_DATA_DIR,
                color=self.stdout.isatty() and "NO_COLOR" not in os.environ,
            )
        self.stdout.write(text + "\n")
        self.stdout.flush()


def _answers(url: str) -> bool:
    """Whether the address answers 200. Asked directly: a proxy is for what is outside."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, HTTPException):
        return False
