"""docs/examples/client.mjs, the client written from docs/api.md alone, as people run it."""

import base64
import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from relay.models import Device, DeviceState, Envelope, Outcome
from tests.api.helpers import set_limits
from tests.client import make_device, make_provisioner
from tests.conftest import PROJECT, RelayProcess

CLIENT = PROJECT / "docs" / "examples" / "client.mjs"
#: 7 parts of 48 KiB.
CONTENT = bytes(range(256)) * 1200


@pytest.fixture(scope="session")
def node() -> str:
    """Node, from the environment of this Python or from the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which("node", path=path)
    if found is None:
        reason = "no node here: the example client in docs/examples needs Node 18 or newer"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@dataclass(frozen=True)
class Ran:
    """What the client left."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Example:
    """The client, a file to carry, and a token."""

    node: str
    file: Path
    token: str

    def run(self, url: str, *arguments: str, **environment: str) -> Ran:
        """`node docs/examples/client.mjs FILE`."""
        variables = {"RELAY_URL": url, "RELAY_DEMO_PROVISIONER_TOKEN": self.token, **environment}
        done = subprocess.run(
            [self.node, str(CLIENT), *(arguments or [str(self.file)])],
            env={"PATH": os.environ["PATH"], **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def example(node: str, tmp_path: Path) -> Example:
    """The client with a file to carry."""
    file = tmp_path / "file"
    file.write_bytes(CONTENT)
    return Example(node, file, make_provisioner().token)


# --- A network in between --------------------------------------------------------------------


@dataclass
class Answer:
    """An answer on its way to the client."""

    status: int
    headers: dict[str, str]
    body: bytes


#: Looks at an answer to a "METHOD /path" and passes it on, another one, or none.
Fate = Callable[[str, Answer], Answer | None]
#: What belongs to one connection and not to the answer.
_HOP = {"connection", "content-length", "transfer-encoding", "date", "server"}


@contextmanager
def network(relay: RelayProcess, fate: Fate) -> Iterator[str]:
    """The address of a proxy in front of the relay."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65_537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = fate(f"{self.command} {self.path.partition('?')[0]}", self._ask(body))
            self.close_connection = True
            if answer is not None:
                self._pass_on(answer)

        def _ask(self, body: bytes) -> Answer:
            upstream = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=30)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
            upstream.request(self.command, self.path, body or None, headers)
            found = upstream.getresponse()
            kept = {k: v for k, v in found.getheaders() if k.lower() not in _HOP}
            answer = Answer(found.status, kept, found.read())
            upstream.close()
            return answer

        def _pass_on(self, answer: Answer) -> None:
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer.body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def outcomes() -> Counter[str]:
    """What became of the envelopes that the relay took."""
    return Counter(Envelope.objects.values_list("outcome", flat=True))


# --- It works --------------------------------------------------------------------------------


def test_a_file_goes_through_and_comes_out_equal(
    example: Example, relay_process: RelayProcess
) -> None:
    ran = example.run(relay_process.url)
    assert (ran.code, ran.stderr) == (0, "")
    assert "Equal: 307200 bytes." in ran.stdout.splitlines()
    assert "sent part 4 again: 201 replayed, byte for byte" in ran.stdout
    assert ran.stdout.count("pulled a page") == 3
    assert "acknowledged again: the same 7 answers, 0 pending" in ran.stdout
    assert outcomes() == {Outcome.ACKNOWLEDGED: 7}
    states = set(Device.objects.values_list("state", flat=True))
    assert states == {DeviceState.DISABLED}


def test_an_empty_file_is_one_part(example: Example, relay_process: RelayProcess) -> None:
    example.file.write_bytes(b"")
    assert example.run(relay_process.url).code == 0
    assert outcomes() == {Outcome.ACKNOWLEDGED: 1}


def test_a_file_that_is_larger_than_the_queue_goes_through_in_rounds(
    example: Example, relay_process: RelayProcess
) -> None:
    set_limits(pending_count=10, envelope_bytes=8192)
    ran = example.run(relay_process.url)
    assert (ran.code, ran.stderr) == (0, "")
    # 8192 bytes less 76 around the content: 307200 bytes are 38 parts.
    assert outcomes() == {Outcome.ACKNOWLEDGED: 38}


class Bad:
    """Each kind of call goes wrong once, each in another way, after the relay has done it."""

    def __init__(self) -> None:
        self.met: list[str] = []

    def fate(self, call: str, answer: Answer) -> Answer | None:
        if call in self.met:
            return answer
        self.met.append(call)
        problem = {"code": "STORAGE_UNAVAILABLE", "detail": "…", "retryable": True}
        instead = [
            None,
            Answer(502, {"Content-Type": "text/html"}, b"<h1>Bad gateway</h1>"),
            Answer(503, {"Content-Type": "application/problem+json"}, json.dumps(problem).encode()),
            Answer(200, {"Content-Type": "text/html"}, b"<h1>Welcome to the hotel</h1>"),
            Answer(200, {"Content-Type": "application/json"}, b"{}"),
        ]
        return instead[len(self.met) % len(instead)]


def test_a_bad_network_makes_no_envelope_twice(
    example: Example, relay_process: RelayProcess
) -> None:
    bad = Bad()
    with network(relay_process, bad.fate) as url:
        ran = example.run(url)
    assert (ran.code, ran.stderr) == (0, "")
    # The instance, two devices made, submit, pull, acknowledge, pending, two devices disabled.
    assert len(bad.met) == 9, bad.met
    assert outcomes() == {Outcome.ACKNOWLEDGED: 7}
    assert Device.objects.count() == 2


# --- It says so when it does not -------------------------------------------------------------


#: What a relay does to a page's envelopes.
Meddling = Callable[[list[dict[str, Any]]], None]


def _pages(change: Meddling) -> Fate:
    def fate(call: str, answer: Answer) -> Answer:
        if call != "GET /v1/envelopes":
            return answer
        page = json.loads(answer.body)
        change(page["envelopes"])
        return Answer(answer.status, answer.headers, json.dumps(page).encode())

    return fate


def _flip_a_bit(envelopes: list[dict[str, Any]]) -> None:
    changed = bytearray(base64.b64decode(envelopes[0]["ciphertext"]))
    changed[-20] ^= 1
    envelopes[0]["ciphertext"] = base64.b64encode(changed).decode()


def _repeat_one_for_another(envelopes: list[dict[str, Any]]) -> None:
    envelopes[-1]["ciphertext"] = envelopes[0]["ciphertext"]


def _hold_back(envelopes: list[dict[str, Any]]) -> None:
    del envelopes[0]


@pytest.mark.parametrize("change", [_flip_a_bit, _repeat_one_for_another, _hold_back])
def test_a_relay_that_meddles_is_found_out_and_nothing_is_acknowledged(
    example: Example,
    relay_process: RelayProcess,
    change: Meddling,
) -> None:
    with network(relay_process, _pages(change)) as url:
        ran = example.run(url)
    assert ran.code == 1
    assert "did not arrive" in ran.stderr
    assert "Equal" not in ran.stdout
    assert Outcome.ACKNOWLEDGED not in outcomes()


def test_a_relay_that_does_not_replay_is_found_out(
    example: Example, relay_process: RelayProcess
) -> None:
    def fate(call: str, answer: Answer) -> Answer:
        kept = {k: v for k, v in answer.headers.items() if k.lower() != "idempotency-replayed"}
        return Answer(answer.status, kept, answer.body)

    with network(relay_process, fate) as url:
        ran = example.run(url)
    assert (ran.code, ran.stderr) == (
        1,
        "Failed: a repeated submit did not get the first answer\n",
    )


def test_a_token_that_is_no_provisioners_is_one_line(
    example: Example, relay_process: RelayProcess
) -> None:
    ran = example.run(relay_process.url, RELAY_DEMO_PROVISIONER_TOKEN=make_device().token)
    assert ran.code == 1
    assert ran.stderr.startswith("Failed: FORBIDDEN: ")
    assert ran.stderr.count("\n") == 1


def test_no_relay_is_one_line(example: Example) -> None:
    ran = example.run("http://127.0.0.1:9")
    assert ran.code == 1
    assert ran.stderr.startswith("Failed: NO_ANSWER: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("a", "b"), {}),
        (("/nowhere/at/all",), {}),
        (("README.md",), {"RELAY_URL": ""}),
        (("README.md",), {"RELAY_DEMO_PROVISIONER_TOKEN": ""}),
    ],
)
def test_a_wrong_command_line_is_told_apart(
    example: Example, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    ran = example.run("http://127.0.0.1:9", *arguments, **environment)
    assert (ran.code, ran.stdout) == (2, "")
    assert ran.stderr.count("\n") == 1
