"""The reference client against a network that misbehaves, with the real relay behind it."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from django.db import connection

from idempotency.models import Record
from quotas.models import QueueUsage
from relay.demo.client import (
    Accepted,
    Client,
    Credentials,
    Draft,
    Envelope,
    Failure,
    GaveUp,
    Inbox,
    NotARelay,
    backoff,
)
from relay.models import Device, DeviceState, Instance
from relay.models import Envelope as Stored
from tests.client import Party, RelayClient, make_device, make_provisioner
from tests.conftest import PROJECT, RelayProcess


@dataclass(frozen=True)
class Fault:
    """What happens to one request: whether the relay sees it, and what the client hears."""

    reaches_relay: bool = True
    hears: Callable[[bytes], bytes] = lambda answer: answer
    hangs: bool = False


NONE = Fault()
LOST = Fault(hears=lambda answer: b"")
BROKEN_OFF = Fault(hears=lambda answer: answer[:-5])
HANGS = Fault(hangs=True)


def says(
    status: int,
    body: str | dict[str, object],
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    reaches_relay: bool = False,
) -> Fault:
    """Another answer than the relay's; a dict is a problem document."""
    is_problem = isinstance(body, dict)
    content = (json.dumps(body) if is_problem else str(body)).encode()
    lines = [
        f"HTTP/1.1 {status} Whatever",
        f"Content-Type: {'application/problem+json' if is_problem else 'text/html'}",
        f"Content-Length: {len(content)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    answer = "\r\n".join(lines).encode() + b"\r\n\r\n" + content
    return Fault(reaches_relay, lambda _: answer)


class Weather:
    """A proxy to the relay: each request meets the next fault, and none when they are over."""

    def __init__(self, upstream_port: int) -> None:
        self.faults: deque[Fault] = deque()
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []  # the relay's, whether anybody heard them or not
        self._upstream = ("127.0.0.1", upstream_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        """One request a connection."""
        with client, suppress(OSError):
            request = _read_request(client)
            if not request:
                return
            fault = self.faults.popleft() if self.faults else NONE
            self.requests.append(request)
            answer = self._ask(request) if fault.reaches_relay else b""
            if fault.hangs:
                client.recv(1)  # returns when the client has had enough
                return
            heard = fault.hears(answer)
            client.sendall(heard.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    def _ask(self, request: bytes) -> bytes:
        alone = request.replace(b"Connection: keep-alive", b"Connection: close", 1)
        with socket.create_connection(self._upstream, timeout=30) as upstream:
            upstream.sendall(alone)
            answer = b"".join(iter(lambda: upstream.recv(65_536), b""))
        self.answers.append(answer)
        return answer


def _read_request(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := client.recv(65_536))
        if not more:
            return b""
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if b"content-length:" in line]
    missing = int(lengths[0]) - len(body) if lengths else 0
    while missing > 0:
        data += (more := client.recv(missing))
        missing -= len(more)
    return data


class Network:
    """The way to the relay through its weather, and a time that only sleeping moves."""

    def __init__(self, weather: Weather, http: httpx.Client) -> None:
        self.faults, self.requests, self.answers = weather.faults, weather.requests, weather.answers
        self.url = weather.url
        self.http = http
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def client(self, party: Party, **options: Any) -> Client:
        """A client whose waits take no time, with the jitter at one half."""
        clock, token = lambda: self.now, party.token
        http = options.pop("http", self.http)
        return Client(http, token, sleep=self.sleep, clock=clock, jitter=lambda: 0.5, **options)

    def sent_to(self, path: bytes) -> list[bytes]:
        """The requests for one path."""
        return [request for request in self.requests if request.split(b" ", 2)[1] == path]


@pytest.fixture
def network(relay_process: RelayProcess) -> Iterator[Network]:
    """What stands between client and relay."""
    weather = Weather(relay_process.port)
    with httpx.Client(base_url=weather.url, trust_env=False) as http:
        yield Network(weather, http)
    weather.close()


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def limits(**columns: int) -> None:
    """Change the limits in force; the relay under test believes no old ones."""
    with connection.cursor() as cursor:
        for name, value in columns.items():
            cursor.execute(f"UPDATE quotas_limitpolicy SET {name} = %s", [value])


# --- Submitting ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LOST, BROKEN_OFF])
def test_a_lost_answer_is_asked_for_again_with_the_very_same_request(
    network: Network, fault: Fault
) -> None:
    sender, recipient = make_device(), make_device()
    network.faults.extend([fault, fault])
    accepted = network.client(sender).submit(Draft(recipient.id, b"once"))
    assert network.requests == [network.requests[0]] * 3
    assert accepted.replayed
    assert not accepted.duplicate
    assert accepted.body == body_of(network.answers[0]) == body_of(network.answers[2])
    assert Stored.objects.count() == 1
    assert len(network.slept) == 2


def test_a_relay_that_hangs_is_left_after_the_attempts_time(network: Network) -> None:
    sender, recipient = make_device(), make_device()
    network.faults.append(HANGS)
    client = network.client(sender, attempt_timeout=0.5)
    started = time.monotonic()
    assert client.submit(Draft(recipient.id, b"once")).replayed
    assert time.monotonic() - started < 10
    assert Stored.objects.count() == 1


def test_an_attempt_takes_no_longer_than_the_patience_that_is_left(network: Network) -> None:
    network.faults.append(HANGS)
    client = network.client(make_device(), patience=0.3, attempt_timeout=60)
    started = time.monotonic()
    with pytest.raises(GaveUp, match="gave up after 1 attempt: NO_ANSWER"):
        client.device()
    assert time.monotonic() - started < 10


def test_a_first_request_that_still_runs_is_waited_for(network: Network) -> None:
    sender, recipient = make_device(), make_device()
    problem = {"code": "IDEMPOTENCY_IN_PROGRESS", "retryable": True, "retry_after": 1}
    network.faults.append(says(409, problem, {"Retry-After": "1"}, reaches_relay=True))
    accepted = network.client(sender).submit(Draft(recipient.id, b"once"))
    assert accepted.replayed
    assert network.slept == [1.125]


@pytest.mark.parametrize(
    ("problem", "header", "least"),
    [
        ({"code": "STORAGE_UNAVAILABLE", "retryable": True}, "7", 7),
        ({"code": "STORAGE_UNAVAILABLE", "retryable": True, "retry_after": 9}, None, 9),
        ({"code": "X", "retryable": True, "retry_after": 3}, "8", 8),
        ({"code": "X", "retryable": True, "retry_after": 8}, "3", 8),
        ({"code": "INTERNAL", "retryable": False, "retry_after": 2}, None, 2),
        ("<h1>Bad gateway</h1>", "5", 5),
    ],
)
def test_a_wait_is_never_shorter_than_the_answer_asks(
    network: Network, problem: str | dict[str, object], header: str | None, least: int
) -> None:
    sender, recipient = make_device(), make_device()
    headers = {} if header is None else {"Retry-After": header}
    network.faults.append(says(503, problem, headers))
    accepted = network.client(sender).submit(Draft(recipient.id, b"once"))
    assert network.slept == [least + 0.125]
    assert not accepted.replayed
    assert len(network.requests) == 2


@pytest.mark.parametrize("asks", ["-5", "soon", "nan", "", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_senseless_retry_after_leaves_the_clients_own_wait(network: Network, asks: str) -> None:
    network.faults.append(says(503, "", {"Retry-After": asks}))
    network.faults.append(says(503, {"retry_after": float("nan")}))
    network.client(make_device()).device()
    assert network.slept == [0.375, 0.75]


def test_a_full_queue_is_tried_again_after_its_time(network: Network) -> None:
    sender, recipient = make_device(), make_device()
    limits(pending_count=10)
    inbox, as_recipient = Inbox(), network.client(recipient)
    heard: list[tuple[str, float]] = []

    def make_room(failure: Failure, wait: float) -> None:
        heard.append((failure.code, wait))
        network.now += 10  # the hook may take its time: it counts as waiting
        inbox.receive(as_recipient, lambda envelope: True, limit=10)
        inbox.acknowledge(as_recipient)

    client = network.client(sender, on_retry=make_room)
    for _ in range(10):
        client.submit(Draft(recipient.id, b"fills it"))
    assert not client.submit(Draft(recipient.id, b"waits")).replayed
    [(code, wait)] = heard
    assert code == "RECIPIENT_QUOTA_EXCEEDED"
    assert 30 <= wait <= 60.125
    assert network.slept == [pytest.approx(wait - 10)]


def test_a_sender_over_its_rate_slows_down(network: Network) -> None:
    sender, recipient = make_device(), make_device()
    limits(actor_rate=1, window_seconds=3600)
    heard: list[str] = []

    def pass_time(failure: Failure, wait: float) -> None:
        heard.append(failure.code)
        limits(actor_rate=1_000_000)

    client = network.client(sender, on_retry=pass_time, patience=10_000)
    for _ in range(2):
        client.submit(Draft(recipient.id, b"fast"))
    assert heard == ["RATE_LIMITED"]
    assert network.slept[0] >= 1


def test_a_refusal_is_final(network: Network) -> None:
    with pytest.raises(Failure, match="RECIPIENT_UNKNOWN: There is no active device") as refused:
        network.client(make_device()).submit(Draft(uuid4(), b"x"))
    assert (refused.value.code, refused.value.retryable) == ("RECIPIENT_UNKNOWN", False)
    assert len(network.requests) == 1
    assert network.slept == []


def test_a_draft_under_another_ciphertext_is_a_conflict(network: Network) -> None:
    client, recipient = network.client(make_device()), make_device()
    draft = Draft(recipient.id, b"first")
    client.submit(draft)
    again = Draft(recipient.id, b"encrypted again", message_id=draft.message_id)
    with pytest.raises(Failure, match="MESSAGE_ID_CONFLICT"):
        client.submit(again)


def test_a_draft_that_outlived_its_key_is_a_duplicate(network: Network) -> None:
    client, draft = network.client(make_device()), Draft(make_device().id, b"old")
    first = client.submit(draft)
    Record.objects.all().delete()
    again = client.submit(draft)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.accepted_at == first.accepted_at
    assert Stored.objects.count() == 1


def test_the_client_gives_up_with_the_reason(network: Network) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with httpx.Client(base_url=address, trust_env=False) as closed:
            client = network.client(make_device(), http=closed, patience=100)
            with pytest.raises(GaveUp, match=r"gave up after \d+ attempts: NO_ANSWER: .*refused"):
                client.submit(Draft(uuid4(), b"x"))
    # By hand: 3/4 of 0.5, 1, 2, 4, 8, 16, 20, 20 … with the jitter at one half.
    assert network.slept == [0.375, 0.75, 1.5, 3.0, 6.0, 12.0, 15.0, 15.0, 15.0, 15.0, 15.0]
    assert sum(network.slept) < 100


def test_a_wait_beyond_the_patience_is_not_begun(network: Network) -> None:
    network.faults.append(says(503, {"code": "X", "retryable": True, "retry_after": 3600}))
    with pytest.raises(GaveUp, match="gave up after 1 attempt: X"):
        network.client(make_device(), patience=60).device()
    assert network.slept == []


@pytest.mark.parametrize("status", [301, 308, 403, 413])
def test_an_answer_of_something_else_is_no_reason_to_try_again(
    network: Network, status: int
) -> None:
    elsewhere = f"{network.url}/elsewhere"
    network.faults.append(says(status, "<h1>No</h1>", {"Location": elsewhere}))
    with pytest.raises(Failure, match=f"HTTP_{status}"):
        network.client(make_device()).submit(Draft(uuid4(), b"x"))
    assert len(network.requests) == 1


@pytest.mark.parametrize(
    "page",
    ["<h1>Log in to the network</h1>", "[]", "null", '{"message_id": "of another"}', "{}"],
)
def test_a_success_of_something_else_is_not_believed(network: Network, page: str) -> None:
    network.faults.append(says(200, page))
    with pytest.raises(NotARelay, match="does not answer as a relay does"):
        network.client(make_device()).submit(Draft(make_device().id, b"x"))
    assert not Stored.objects.exists()


def test_another_messages_acceptance_is_not_believed(network: Network) -> None:
    other = {"message_id": str(uuid4()), "accepted_at": "…", "expires_at": "…", "ttl_seconds": 1}
    network.faults.append(says(201, other))
    with pytest.raises(NotARelay):
        network.client(make_device()).submit(Draft(make_device().id, b"x"))


def test_what_a_problem_says_cannot_steer_a_terminal(network: Network) -> None:
    network.faults.append(says(400, {"code": "X", "detail": "a\x1b[2J\r\nb"}))
    with pytest.raises(Failure) as refused:
        network.client(make_device()).device()
    assert str(refused.value) == "X: a [2J  b"


# --- Pulling and acknowledging ---------------------------------------------------------------


class Reader:
    """A device that reads, and what it took."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.inbox = Inbox()
        self.taken: list[bytes] = []
        self.cannot_open: set[bytes] = set()

    def take(self, envelope: Envelope) -> bool:
        if envelope.ciphertext in self.cannot_open:
            return False
        self.taken.append(envelope.ciphertext)
        return True

    def read_all(self, *, limit: int = 2) -> None:
        while self.inbox.receive(self.client, self.take, limit=limit).has_more:
            continue


@pytest.fixture
def post(network: Network) -> Callable[..., Accepted]:
    """Send ciphertext to a device."""
    sender = network.client(make_device())
    return lambda recipient, ciphertext: sender.submit(Draft(recipient.id, ciphertext))


Post = Callable[[Party, bytes], Accepted]


def test_reading_goes_on_from_the_cursor(network: Network, post: Post) -> None:
    device = make_device()
    reader = Reader(network.client(device))
    for ciphertext in (b"1", b"2", b"3"):
        post(device, ciphertext)
    reader.read_all()
    post(device, b"4")
    reader.read_all()
    assert reader.taken == [b"1", b"2", b"3", b"4"]


def test_a_saved_cursor_acknowledges_nothing(
    relay: RelayClient, network: Network, post: Post
) -> None:
    device = make_device()
    post(device, b"1")
    reader = Reader(network.client(device))
    reader.read_all()
    assert relay.device(device).json()["pending"] == {"count": 1, "bytes": 1}
    assert len(reader.inbox.owed) == 1
    assert list(reader.inbox.acknowledge(reader.client).values()) == ["acknowledged"]
    assert relay.device(device).json()["pending"] == {"count": 0, "bytes": 0}
    assert reader.inbox.owed == set()


def test_a_page_that_was_not_finished_comes_again_without_its_first_half(
    network: Network, post: Post
) -> None:
    device = make_device()
    for ciphertext in (b"1", b"2", b"3"):
        post(device, ciphertext)
    reader = Reader(network.client(device))

    def disk_is_full_at_2(envelope: Envelope) -> bool:
        if envelope.ciphertext == b"2":
            raise OSError("No space left on device")
        return reader.take(envelope)

    with pytest.raises(OSError, match="No space"):
        reader.inbox.receive(reader.client, disk_is_full_at_2, limit=3)
    assert reader.inbox.cursor is None
    reader.read_all()
    assert reader.taken == [b"1", b"2", b"3"]


def test_after_a_restore_reading_starts_over_and_takes_nothing_twice(
    network: Network, post: Post
) -> None:
    device = make_device()
    reader = Reader(network.client(device))
    for ciphertext in (b"1", b"2"):
        post(device, ciphertext)
    reader.read_all()
    Instance.objects.update(epoch=uuid4())
    post(device, b"3")
    reader.read_all()
    assert b"410" in [answer.split(b" ", 2)[1] for answer in network.answers]
    assert reader.taken == [b"1", b"2", b"3"]
    assert set(reader.inbox.acknowledge(reader.client).values()) == {"acknowledged"}


def test_mail_that_was_acknowledged_before_a_restore_is_acknowledged_again(
    relay: RelayClient, network: Network, post: Post
) -> None:
    device = make_device()
    reader = Reader(network.client(device))
    post(device, b"1")
    reader.read_all()
    reader.inbox.acknowledge(reader.client)
    # The backup knows nothing of the acknowledgement.
    Stored.objects.update(outcome="pending", acked_at=None, cleanup_after=None)
    QueueUsage.objects.update(pending_count=1, pending_bytes=1)
    Instance.objects.update(epoch=uuid4())
    reader.read_all()
    assert reader.taken == [b"1"]
    reader.inbox.acknowledge(reader.client)
    assert relay.device(device).json()["pending"]["count"] == 0


def test_a_cursor_of_another_device_is_an_error_and_not_a_fresh_start(network: Network) -> None:
    other, reader = Reader(network.client(make_device())), make_device()
    other.read_all()
    inbox = Inbox(cursor=other.inbox.cursor)
    with pytest.raises(Failure, match="CURSOR_INVALID"):
        inbox.receive(network.client(reader), other.take, limit=1)


def test_an_envelope_that_does_not_open_is_passed_and_not_acknowledged(
    relay: RelayClient, network: Network, post: Post
) -> None:
    device = make_device()
    for ciphertext in (b"1", b"poison", b"3"):
        post(device, ciphertext)
    reader = Reader(network.client(device))
    reader.cannot_open = {b"poison"}
    reader.read_all(limit=1)
    assert reader.taken == [b"1", b"3"]
    assert len(reader.inbox.acknowledge(reader.client)) == 2
    assert relay.device(device).json()["pending"] == {"count": 1, "bytes": 6}


def test_a_lost_answer_to_an_acknowledgement_changes_nothing(network: Network, post: Post) -> None:
    device = make_device()
    post(device, b"1")
    reader = Reader(network.client(device))
    reader.read_all()
    owed = set(reader.inbox.owed)
    network.faults.append(LOST)
    assert reader.inbox.acknowledge(reader.client) == {owed.pop(): "acknowledged"}
    first, second = network.sent_to(b"/v1/acks")
    assert first == second


def test_an_acknowledgement_that_never_arrives_stays_owed(network: Network, post: Post) -> None:
    device = make_device()
    post(device, b"1")
    reader = Reader(network.client(device, patience=1))
    reader.read_all()
    network.faults.extend([Fault(reaches_relay=False, hears=lambda answer: b"")] * 9)
    with pytest.raises(GaveUp):
        reader.inbox.acknowledge(reader.client)
    assert len(reader.inbox.owed) == 1
    network.faults.clear()
    assert list(reader.inbox.acknowledge(reader.client).values()) == ["acknowledged"]


def test_more_than_a_hundred_are_acknowledged_in_several_calls(network: Network) -> None:
    ids = [uuid4() for _ in range(201)]
    outcomes = network.client(make_device()).acknowledge(ids)
    assert outcomes == dict.fromkeys(ids, "unknown")
    sizes = [
        len(json.loads(body_of(request))["message_ids"]) for request in network.sent_to(b"/v1/acks")
    ]
    assert sizes == [100, 100, 1]


# --- Devices, credentials, waits -------------------------------------------------------------


def test_a_device_made_by_a_provisioner_works_although_the_answer_was_lost(
    network: Network,
) -> None:
    credentials, provisioner = Credentials(), network.client(make_provisioner())
    network.faults.append(LOST)
    provisioner.put_device(credentials)
    first, second = network.answers
    assert body_of(first) == body_of(second)
    assert b"201" in second.split(b"\r\n", 1)[0]  # the first answer's replay, not a rotation
    device = network.client(Party(credentials.device_id, credentials.token))
    assert device.device()["device_id"] == str(credentials.device_id)
    provisioner.disable_device(credentials.device_id)
    assert Device.objects.get(device_id=credentials.device_id).state == DeviceState.DISABLED


def test_a_token_is_the_secret_and_the_digest_is_of_its_bytes() -> None:
    device_id = UUID("00000000-0000-4000-8000-00000000000a")
    credentials = Credentials(device_id, bytes(range(32)))
    assert credentials.token == (
        "rld1.00000000-0000-4000-8000-00000000000a.AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    )
    assert credentials.token_sha256 == (
        "630dcd2966c4336691125448bbb25b4ff412a49c732db2c8abc1b8581bd710dd"
    )
    assert "AAEC" not in repr(credentials)


def test_secrets_keys_and_ids_are_never_the_same_twice() -> None:
    assert Credentials().secret != Credentials().secret
    first, second = Draft(uuid4(), b"x"), Draft(uuid4(), b"x")
    assert first.message_id != second.message_id
    assert first.key != second.key


@pytest.mark.parametrize(
    ("attempt", "retry_after", "jitter", "wait"),
    [
        (0, 0, 0.0, 0.25),
        (0, 0, 1.0, 0.5),
        (3, 0, 0.0, 2.0),
        (3, 0, 1.0, 4.0),
        (10, 0, 0.0, 10.0),
        (100_000, 0, 1.0, 20.0),
        (0, 47, 0.0, 47.0),
        (0, 47, 1.0, 47.25),
        (9, 1, 0.0, 10.0),
        (9, 60, 1.0, 70.0),
    ],
)
def test_waits_double_up_to_a_bound_and_never_undercut_the_relay(
    attempt: int, retry_after: float, jitter: float, wait: float
) -> None:
    assert backoff(attempt, retry_after=retry_after, jitter=jitter) == wait


def test_the_reference_client_stands_alone() -> None:
    """Client developers can take the files as they are: nothing of the server comes along."""
    program = (
        "import sys, relay.demo.client, relay.demo.crypto, relay.demo.story\n"
        "ours = {'relay', 'relay.demo', 'relay.demo.client', 'relay.demo.crypto', "
        "'relay.demo.network', 'relay.demo.story', 'relay.demo.words'}\n"
        "roots = ('django', 'relay', 'config', 'quotas', 'idempotency', 'outbox', 'adminui')\n"
        "print([name for name in sys.modules if name.split('.')[0] in roots and name not in ours])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
