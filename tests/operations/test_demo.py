"""`manage.py demo` as its users meet it, and its story when things go wrong half-way."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from idempotency.models import Record
from quotas.models import QueueUsage
from relay.demo import crypto, story
from relay.models import Body, Device, DeviceState, Envelope, Outcome, Provisioner
from tests.client import RelayClient, make_device, make_provisioner
from tests.conftest import PROJECT, RelayProcess

KIB = 1024
#: A database that nobody serves: the demo must not want one.
NO_DATABASE = "postgresql://nobody@127.0.0.1:1/none"
#: A provisioner's token by its form.
UNKNOWN = f"rlp1.{uuid4()}.{'A' * 43}"


class Demo:
    """Runs the command against the relay under test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = make_provisioner().token

    def start(self, *arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        settings = {
            "DATABASE_URL": NO_DATABASE,
            "RELAY_URL": self.url,
            "RELAY_DEMO_PROVISIONER_TOKEN": self.token,
            "PYTHONUNBUFFERED": "1",
        }
        return subprocess.Popen(
            [sys.executable, str(PROJECT / "manage.py"), "demo", *map(str, arguments)],
            env={**os.environ, **settings, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str | Path, **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        process = self.start(*arguments, **environment)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def facts(self, *arguments: str | Path, **environment: str) -> dict[str, Any]:
        """What `--json` prints, when all went well."""
        code, output, errors = self.run(*arguments, "--json", **environment)
        assert (code, errors) == (0, "")
        assert output.count("\n") == 1
        return dict(json.loads(output))


@pytest.fixture
def demo(relay_process: RelayProcess) -> Demo:
    """The command, with a provisioner's token of its own."""
    return Demo(relay_process.url)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 200 KiB: five parts of 48 KiB, so three pages of two."""
    path = tmp_path / "holiday.jpg"
    path.write_bytes(os.urandom(200 * KIB))
    return path


def assert_nothing_is_left(devices: int = 2) -> None:
    """Every device of the demo is disabled."""
    states = list(Device.objects.values_list("state", flat=True))
    assert states == [DeviceState.DISABLED] * devices


def test_a_file_of_several_parts_comes_back_equal(demo: Demo, file: Path) -> None:
    facts = demo.facts(file)
    assert facts.pop("seconds") > 0
    assert facts == {
        "bytes": 204_800,
        "parts": 5,
        "pages": 3,
        "equal": True,
        "replayed": True,
        "server_holds": {
            "pending": {"count": 0, "bytes": 0},
            "receipts": 5,
            "receipt_days": 8,
        },
    }
    # The repeated submit made no sixth envelope, and no size tells the last part's.
    assert list(Envelope.objects.values_list("outcome", flat=True)) == [Outcome.ACKNOWLEDGED] * 5
    assert len(set(Envelope.objects.values_list("size", flat=True))) == 1
    assert_nothing_is_left()


def test_the_server_never_holds_what_the_file_says(demo: Demo, tmp_path: Path) -> None:
    marker = b"a sentence that no server should read"
    (tmp_path / "letter").write_bytes(marker * 3_000)
    demo.facts(tmp_path / "letter")
    stored = [bytes(body.ciphertext) for body in Body.objects.all()]
    assert len(stored) == 3
    assert not any(marker in ciphertext for ciphertext in stored)


def test_the_timeline_tells_the_story_in_its_order(demo: Demo, file: Path) -> None:
    code, output, errors = demo.run(file)
    assert (code, errors) == (0, "")
    assert output.startswith(f"holiday.jpg (200 KiB) through {demo.url}\n")
    lines = [" ".join(line.split()[2:]) for line in output.splitlines()[2:-2]]
    assert [re.sub(r"0\.\d\d s$", "0.… s", line) for line in lines] == [
        "relay answers: envelopes up to 64 KiB, kept 7 days at most",
        "provisioner made two devices, by SHA-256 of secrets that they keep",
        "sender encrypted 5 parts, padded to 48 KiB",
        "sender sent part 1 of 5 (48.1 KiB)",
        "sender sent part 2 of 5 (48.1 KiB)",
        "network loses the answer, on purpose: the sender's time is up",
        "sender NO_ANSWER: tries the very same again in 0.… s",
        "sender sent part 3 again: 201 replayed, byte for byte",
        "sender sent part 4 of 5 (48.1 KiB)",
        "sender sent part 5 of 5 (48.1 KiB)",
        "relay holds 5 pending envelopes, 240.4 KiB",
        "recipient page 1: 2 envelopes decrypted, then the cursor saved",
        "recipient page 2: 2 envelopes decrypted, then the cursor saved",
        "recipient page 3: 1 envelope decrypted, then the cursor saved",
        "recipient has 200 KiB, byte for byte what was sent",
        "recipient acknowledged 5 envelopes",
        "recipient acknowledged again: 5 equal answers",
        "relay still holds 0 pending envelopes, 0 bytes",
        "relay and 5 receipts for 8 days; ciphertext: an hour at most",
        "provisioner disabled 2 devices: the demo leaves nothing pending",
    ]
    assert re.fullmatch(
        r"Equal: 200 KiB there in 5 parts, back in 3 pages, \d+\.\d\d s\.",
        output.splitlines()[-1],
    )
    times = [float(moment) for moment in re.findall(r"(?m)^ +\+(\d+\.\d\d) s  ", output)]
    assert times == sorted(times)
    assert len(times) == 20
    assert "\x1b" not in output


def test_a_name_that_would_steer_the_terminal_is_shown_harmless(demo: Demo, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\x1b[2J\xff"
    Path(os.fsdecode(path)).write_bytes(b"x")
    code, output, _ = demo.run(os.fsdecode(path))
    assert (code, output.splitlines()[0]) == (0, f"?[2J? (1 byte) through {demo.url}")


def test_an_empty_file_travels_too(demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    facts = demo.facts(tmp_path / "empty")
    assert (facts["bytes"], facts["parts"], facts["pages"]) == (0, 1, 1)
    assert_nothing_is_left()


@pytest.mark.parametrize(("size", "parts"), [(49_152, 1), (49_153, 2), (98_304, 2)])
def test_a_part_holds_48_kib(demo: Demo, tmp_path: Path, size: int, parts: int) -> None:
    (tmp_path / "file").write_bytes(os.urandom(size))
    assert demo.facts(tmp_path / "file")["parts"] == parts


def test_without_a_file_the_readme_travels(demo: Demo) -> None:
    assert demo.facts()["bytes"] == (PROJECT / "README.md").stat().st_size


def test_the_options_win_over_the_environment(demo: Demo, file: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{demo.token}\n")
    options = ("--url", demo.url + "/", "--provisioner-token-file", tmp_path / "token")
    facts = demo.facts(
        file, *options, RELAY_URL="http://127.0.0.1:1", RELAY_DEMO_PROVISIONER_TOKEN="wrong"
    )
    assert facts["equal"]


def test_a_proxy_for_the_outside_is_not_asked_for_this_machine(demo: Demo, file: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    assert demo.facts(file, HTTP_PROXY=nowhere, http_proxy=nowhere, ALL_PROXY=nowhere)["equal"]


# --- Bad days --------------------------------------------------------------------------------


def refused(result: tuple[int, str, str], reason: str) -> None:
    """Exit code 1, nothing on stdout, and one line that says why."""
    code, output, errors = result
    assert (code, output) == (1, ""), errors
    assert re.fullmatch(rf"[^\n]*{reason}[^\n]*\n", errors), errors


def refused_here(
    *arguments: object, reason: str, url: str = "http://127.0.0.1:1", token: str = UNKNOWN
) -> str:
    """The same without a process of its own: the line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_DEMO_PROVISIONER_TOKEN", token)
        with pytest.raises(CommandError, match=reason) as error:
            call_command("demo", *map(str, arguments), "--url", url, "--json")
    assert error.value.returncode == 1
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_that_is_not_there_is_refused(demo: Demo, tmp_path: Path) -> None:
    refused(demo.run(tmp_path / "nothing"), "nothing cannot be read: No such file or directory")
    assert not Device.objects.exists()


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        refused_here(path, reason="is not a regular file")


def test_a_file_that_cannot_be_read_is_refused() -> None:
    refused_here("/proc/self/mem", reason="/proc/self/mem cannot be read: Input/output error")


def test_a_file_over_the_limit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with (tmp_path / "film").open("wb") as film:
        film.truncate(80 * KIB * KIB)
    refused_here(tmp_path / "film", reason="film has 80 MiB; the demo carries 64 MiB at most")


def test_a_relay_that_is_not_there_is_asked_about(demo: Demo, file: Path) -> None:
    result = demo.run(file, "--json", RELAY_URL="http://127.0.0.1:1")
    refused(result, r"No relay answers at http://127\.0\.0\.1:1\. Is `manage\.py up` running\?")


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x", "http://", "http://x:y", "http://a:b@c"]
)
def test_an_address_that_is_none_is_refused(file: Path, url: str) -> None:
    refused_here(file, url=url, reason=f"^{re.escape(url)} is no ")


def test_something_else_at_the_address_is_named(relay_process: RelayProcess, file: Path) -> None:
    url = f"{relay_process.url}/elsewhere"
    refused_here(file, url=url, reason="What answers at .* is not a relay: NOT_FOUND")


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "No provisioner's token: name --provisioner-token-file"),
        ("rld1.secret", "The token is no provisioner's"),
        ("rlp1.\u2603", "The token is no provisioner's"),
    ],
)
def test_without_a_fitting_token_it_says_so_and_never_repeats_it(
    file: Path, token: str, reason: str
) -> None:
    line = refused_here(file, token=token, reason=reason)
    assert not token or token not in line


def test_a_token_file_that_is_not_there_is_refused(file: Path, tmp_path: Path) -> None:
    options = ("--provisioner-token-file", tmp_path / "none")
    refused_here(file, *options, reason="none cannot be read: No such file")


def test_a_revoked_provisioner_is_told_and_there_is_nothing_to_clean_up(
    demo: Demo, file: Path
) -> None:
    Provisioner.objects.all().delete()
    result = demo.run(file, "--json")
    refused(result, "The provisioner cannot make a device: UNAUTHENTICATED")
    assert "provisioner rotate --name" in result[2]
    assert "--provisioner-token-file" in result[2]


def test_ctrl_c_leaves_nothing_behind(demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(30 * KIB * KIB))
    process = demo.start(tmp_path / "large")
    assert process.stdout
    while "sent parts" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "Error: Stopped half-way.\n"
    assert output.splitlines()[-1].endswith("disabled 2 devices: the demo leaves nothing pending")
    assert_nothing_is_left()


def test_a_reader_of_the_output_that_leaves_early_costs_nothing(demo: Demo, file: Path) -> None:
    process = demo.start(file)
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) != 0
    assert process.stderr
    assert "Traceback" not in process.stderr.read()
    states = set(Device.objects.values_list("state", flat=True))
    assert states <= {DeviceState.DISABLED}


# --- The story, with something done to the relay half-way -----------------------------------


class Told:
    """Runs the story here, and does something when a line is told."""

    def __init__(self, url: str) -> None:
        self.url, self.token = url, make_provisioner().token
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.slept: list[float] = []
        self.sleep: Callable[[float], None] = self.slept.append

    def run(
        self, size: int, *, when: str = "", do: Callable[[], None] = lambda: None
    ) -> story.Facts:
        plan = story.Plan("file", os.urandom(size), self.url, self.token)
        pending = [do]

        def show(line: story.Text) -> None:
            self.lines.append(line.plain)
            if when and when in line.plain and pending:
                pending.pop()()

        return story.run(plan, show=show, warn=self.warnings.append, sleep=self.sleep)

    def count(self, text: str) -> int:
        return sum(text in line for line in self.lines)


@pytest.fixture
def told(relay_process: RelayProcess) -> Told:
    """The story against the relay under test."""
    return Told(relay_process.url)


def limits(**columns: int) -> None:
    """Change the limits in force; the relay under test believes no old ones."""
    with connection.cursor() as cursor:
        for name, value in columns.items():
            cursor.execute(f"UPDATE quotas_limitpolicy SET {name} = %s", [value])


def test_a_queue_smaller_than_the_file_is_emptied_in_between(told: Told) -> None:
    limits(pending_count=10)
    facts = told.run(25 * 48 * KIB)
    assert (facts.parts, facts.server_holds["receipts"]) == (25, 25)
    assert told.count("acknowledged 10 envelopes") == 2
    assert told.count("acknowledged 5 envelopes") == 1
    assert told.count("RECIPIENT_QUOTA_EXCEEDED") == 0
    assert Envelope.objects.filter(outcome=Outcome.ACKNOWLEDGED).count() == 25


def test_a_queue_small_in_bytes_is_emptied_in_between(told: Told) -> None:
    limits(pending_bytes=1024 * KIB)  # 21 envelopes of 49,234 bytes
    told.run(25 * 48 * KIB)
    assert told.count("acknowledged 21 envelopes") == 1
    assert told.count("acknowledged 4 envelopes") == 1
    assert told.count("RECIPIENT_QUOTA_EXCEEDED") == 0


def test_a_queue_that_is_full_all_the_same_is_emptied_before_the_retry(told: Told) -> None:
    told.run(12 * 48 * KIB, when="made two devices", do=lambda: limits(pending_count=10))
    assert told.count("RECIPIENT_QUOTA_EXCEEDED: tries the very same again") == 1
    assert told.count("acknowledged 10 envelopes") == 1
    assert max(told.slept) > 25  # the relay asks for 30 s at least; emptying took a part of it


def test_a_small_envelope_limit_makes_smaller_parts(told: Told) -> None:
    limits(envelope_bytes=1024)
    facts = told.run(2_000)
    assert facts.parts == 3  # 1,024 bytes hold 942 of content
    assert set(Envelope.objects.values_list("size", flat=True)) == {1024}


def test_a_relay_that_restarts_meanwhile_costs_only_time(tmp_path: Path) -> None:
    relay = RelayProcess(tmp_path / "web.log")
    relay.start()
    told = Told(relay.url)

    def start_again(seconds: float) -> None:
        if relay.process.poll() is not None:
            relay.start()

    told.sleep = start_again
    try:
        assert told.run(200 * KIB, when="sent part 4 of 5", do=relay.stop).parts == 5
    finally:
        relay.stop()
    assert told.count("NO_ANSWER: tries the very same again") >= 2
    assert Envelope.objects.count() == 5


def test_a_repeated_submit_that_is_no_replay_is_a_failure(told: Told) -> None:
    def forget() -> None:
        Record.objects.all().delete()

    with pytest.raises(story.DemoFailed, match="not answered with the first 201"):
        told.run(1, when="loses the answer", do=forget)
    assert_nothing_is_left()


def test_a_repeated_acknowledgement_with_other_answers_is_a_failure(told: Told) -> None:
    def forget() -> None:
        Envelope.objects.all().delete()

    with pytest.raises(story.DemoFailed, match="A repeated acknowledgement was answered"):
        told.run(1, when="acknowledged 1 envelope", do=forget)


def test_other_bytes_are_a_failure_and_are_not_acknowledged(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crypto.Assembly, "content", lambda assembly: b"other")
    with pytest.raises(story.DemoFailed, match=r"What came back is not what was sent\."):
        told.run(1)
    assert Envelope.objects.filter(outcome=Outcome.PENDING).count() == 1


def test_a_relay_of_another_protocol_version_is_not_tried(told: Told) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE quotas_limitpolicy SET protocol_versions = '{2,3}'")
    with pytest.raises(story.DemoFailed, match=r"takes protocol versions \[2, 3\]; .* speaks 1\."):
        told.run(1)
    assert not Device.objects.exists()


def test_a_relay_without_its_database_is_told_from_none(told: Told) -> None:
    class Unavailable(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b'{"code": "STORAGE_UNAVAILABLE", "detail": "No.", "retryable": true}')

    with HTTPServer(("127.0.0.1", 0), Unavailable) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told.url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(story.DemoFailed, match="cannot work just now: STORAGE_UNAVAILABLE: No"):
            told.run(1)
        server.shutdown()


def test_a_changed_envelope_is_found_out_and_stays_unacknowledged(told: Told) -> None:
    def change() -> None:
        body = Body.objects.order_by("seq")[2]
        changed = bytes(body.ciphertext[:-1]) + bytes([body.ciphertext[-1] ^ 1])
        Body.objects.filter(device_id=body.device_id, seq=body.seq).update(ciphertext=changed)

    with pytest.raises(crypto.Tampered, match="only 4 of 5 parts arrived"):
        told.run(200 * KIB, when="holds 5 pending", do=change)
    assert told.count("alone: an envelope was not made by this sender, or was changed") == 1
    assert not Envelope.objects.filter(outcome=Outcome.ACKNOWLEDGED).exists()
    assert_nothing_is_left()


def test_an_envelope_that_was_left_out_is_missed(told: Told) -> None:
    def leave_out() -> None:
        Envelope.objects.filter(seq=5).delete()

    with pytest.raises(crypto.Tampered, match="only 4 of 5 parts arrived"):
        told.run(200 * KIB, when="holds 5 pending", do=leave_out)


def test_envelopes_in_another_order_come_out_right(told: Told) -> None:
    def swap() -> None:
        first, second = Body.objects.order_by("seq")[:2]
        for body, other in ((first, second), (second, first)):
            rows = Body.objects.filter(device_id=body.device_id, seq=body.seq)
            rows.update(ciphertext=other.ciphertext)

    assert told.run(200 * KIB, when="holds 5 pending", do=swap).equal


def test_an_envelope_handed_out_twice_is_found_out(told: Told) -> None:
    def repeat() -> None:
        first, second = Body.objects.order_by("seq")[:2]
        rows = Body.objects.filter(device_id=second.device_id, seq=second.seq)
        rows.update(ciphertext=first.ciphertext)

    with pytest.raises(crypto.Tampered, match="only 4 of 5 parts arrived"):
        told.run(200 * KIB, when="holds 5 pending", do=repeat)
    assert told.count("part 1 came twice") == 1


def test_devices_that_could_not_be_disabled_are_named(told: Told) -> None:
    def revoke() -> None:
        Provisioner.objects.all().delete()

    facts = told.run(1, when="still holds", do=revoke)
    assert facts.equal
    [warning] = told.warnings
    assert all(str(device.device_id) in warning for device in Device.objects.all())
    assert "UNAUTHENTICATED" in warning


def test_mail_that_is_no_part_of_it_does_not_disturb(told: Told, relay: RelayClient) -> None:
    """Anyone may submit to any device: the demo's queue as well."""

    def write() -> None:
        recipient = QueueUsage.objects.get(pending_count=1).device_id
        assert relay.submit(make_device(), recipient, b"spam").status_code == 201

    facts = told.run(1, when="holds 1 pending", do=write)
    assert facts.server_holds["pending"] == {"count": 1, "bytes": 4}
    assert told.count("alone: an envelope was not made by this sender") == 1


# --- The encryption --------------------------------------------------------------------------


def test_an_envelope_opens_for_its_recipient_alone() -> None:
    sender, recipient, other = story.Device(), story.Device(), story.Device()
    [part] = crypto.split(b"hello", recipient=recipient.id, size=100)
    sealed = crypto.seal(part, sender=sender.key, recipient=recipient.key.public_key, size=100)

    def opened(by: story.Device, made_by: story.Device, device: UUID) -> crypto.Part:
        sender_key = made_by.key.public_key
        return crypto.unseal(sealed, recipient=by.key, sender=sender_key, device=device)

    assert opened(recipient, sender, recipient.id) == part
    for by, made_by, device in (
        (other, sender, other.id),
        (recipient, other, recipient.id),
        (recipient, sender, other.id),
        (sender, recipient, sender.id),  # handed back to who made it
    ):
        with pytest.raises(crypto.Tampered):
            opened(by, made_by, device)


@pytest.mark.parametrize("junk", [b"", b"x", bytes(40), bytes(200)])
def test_junk_does_not_open(junk: bytes) -> None:
    one, two = story.Device(), story.Device()
    with pytest.raises(crypto.Tampered):
        crypto.unseal(junk, recipient=one.key, sender=two.key.public_key, device=one.id)


def test_parts_of_two_transfers_do_not_mix() -> None:
    device = story.Device().id
    ours, theirs = (list(crypto.split(b"abcd", recipient=device, size=2)) for _ in range(2))
    assembly = crypto.Assembly()
    assembly.add(ours[0])
    with pytest.raises(crypto.Tampered, match="another transfer"):
        assembly.add(theirs[1])
    assembly.add(ours[1])
    assert assembly.content() == b"abcd"


@pytest.mark.parametrize("content", [b"", b"a", b"a" * 99, b"a" * 100])
def test_an_envelope_tells_no_size(content: bytes) -> None:
    device = story.Device()
    [part] = crypto.split(content, recipient=device.id, size=100)
    sealed = crypto.seal(part, sender=device.key, recipient=device.key.public_key, size=100)
    assert len(sealed) == 24 + 16 + 41 + 100 + 1  # nonce, MAC, header, content, a byte of padding


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (7_578, "7.4 KiB"),
        (1_048_576, "1 MiB"),
    ],
)
def test_sizes_read_as_people_write_them(size: int, text: str) -> None:
    assert story.in_units(size) == text
