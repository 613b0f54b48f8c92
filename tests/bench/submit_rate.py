"""How many single submits a second a running relay takes.

    .venv/bin/python -m tests.bench.submit_rate --seconds 30

Runs against the relay of `manage.py up` (its env file is read when DATABASE_URL is not set),
with limits out of the way for the run and put back afterwards. The generator keeps a fixed
number of connections busy over raw sockets, so that it costs the machine as little as it can;
it checks that every answer is a 201 and says so.
"""

import argparse
import base64
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit
from uuid import uuid4

from config.trial.envfile import read_env_file

PROJECT = Path(__file__).resolve().parents[2]


@dataclass
class Connection:
    """One client that sends the next submit as soon as the last one was answered."""

    line: socket.socket
    sent_at: float = 0.0
    received: bytes = b""


@dataclass
class Result:
    """What a run saw."""

    seconds: float
    statuses: dict[int, int] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        """The figures: submits a second, percentiles in milliseconds, answers by status."""
        cuts = quantiles(self.latencies, n=100)
        return {
            "submits_per_second": round(self.statuses.get(201, 0) / self.seconds),
            "p50_ms": round(cuts[49] * 1000, 1),
            "p99_ms": round(cuts[98] * 1000, 1),
            "statuses": self.statuses,
        }


def manage(*arguments: str) -> list[dict[str, object]]:
    """A command of the relay; its JSON lines."""
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments, "--json"],
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def request(host: str, token: str, device_id: str, ciphertext: str) -> bytes:
    """One submit, ready for the wire."""
    body = json.dumps(
        {
            "recipient_device_id": device_id,
            "message_id": str(uuid4()),
            "protocol_version": 1,
            "ciphertext": ciphertext,
        }
    )
    return (
        f"POST /v1/envelopes HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"Idempotency-Key: {secrets.token_hex(12)}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def answered(received: bytes) -> int | None:
    """The status of a whole response, or None while some of it is still to come."""
    head, found, body = received.partition(b"\r\n\r\n")
    if not found:
        return None
    lowered = head.lower()
    start = lowered.index(b"content-length:") + len(b"content-length:")
    length = int(lowered[start : lowered.find(b"\r\n", start) % (len(lowered) + 1)])
    return int(head[9:12]) if len(body) >= length else None


def drive(url: str, devices: list[tuple[str, str]], *, seconds: float, clients: int) -> Result:
    """Keep `clients` connections busy for `seconds`."""
    address = urlsplit(url)
    host, port = str(address.hostname), int(address.port or 80)
    ciphertext = base64.b64encode(os.urandom(1024)).decode()
    waiting = selectors.DefaultSelector()
    number = 0

    def send(connection: Connection) -> None:
        nonlocal number
        _, token = devices[number % len(devices)]
        recipient, _ = devices[(number * 7 + 1) % len(devices)]
        number += 1
        connection.received, connection.sent_at = b"", time.perf_counter()
        connection.line.sendall(request(host, token, recipient, ciphertext))

    started = time.perf_counter()
    result = Result(seconds)
    for _ in range(clients):
        line = socket.create_connection((host, port))
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(line)
        waiting.register(line, selectors.EVENT_READ, connection)
        send(connection)
    while (now := time.perf_counter()) - started < seconds:
        for key, _ in waiting.select(0.1):
            connection = key.data
            connection.received += connection.line.recv(65536)
            status = answered(connection.received)
            if status is not None:
                result.latencies.append(time.perf_counter() - connection.sent_at)
                result.statuses[status] = result.statuses.get(status, 0) + 1
                send(connection)
    result.seconds = now - started
    return result


def main() -> None:
    """Make devices, lift the limits, drive, put the limits back, print one line."""
    parser = argparse.ArgumentParser(description="Single submits a second, 1 KiB each.")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--devices", type=int, default=200)
    options = parser.parse_args()
    if "DATABASE_URL" not in os.environ:
        os.environ.update(read_env_file(PROJECT / ".relay" / "env"))
    [before] = manage("limits", "show")
    lifted = ["--actor-rate", "1000000", "--address-rate", "off", "--pending-count", "100000"]
    manage("limits", "set", *lifted, "--reason", "bench: out of the way")
    try:
        made = manage("device_create", "--count", str(options.devices))
        devices = [(str(line["device_id"]), str(line["token"])) for line in made]
        time.sleep(5)  # until every process believes the new limits
        url = os.environ["RELAY_URL"]
        drive(url, devices, seconds=2, clients=options.clients)  # warm
        result = drive(url, devices, seconds=options.seconds, clients=options.clients)
    finally:
        restored = []
        for flag in ("actor_rate", "address_rate", "pending_count"):
            value = before.get(flag)
            restored += [f"--{flag.replace('_', '-')}", "off" if value is None else str(value)]
        manage("limits", "set", *restored, "--reason", "bench: put back")
    sys.stdout.write(json.dumps(result.report()) + "\n")


if __name__ == "__main__":
    main()
