"""The answer is lost after the commit; the client retries (FAULTS 2)."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from config.kernel.clock import rfc3339
from idempotency.models import Record
from relay.models import Envelope
from tests.client import RelayClient, make_device, make_provisioner, new_key
from tests.concurrency.crowd import together
from tests.concurrency.oracle import Journal, assert_sound
from tests.concurrency.proxy import Proxy, proxy_to
from tests.conftest import RelayProcess


@pytest.fixture
def proxy(relay_process: RelayProcess) -> Iterator[Proxy]:
    """A proxy in front of the relay."""
    with proxy_to("127.0.0.1", relay_process.port) as made:
        yield made


@pytest.fixture
def flaky(proxy: Proxy) -> Iterator[RelayClient]:
    """A client that speaks through the proxy."""
    with RelayClient(f"http://127.0.0.1:{proxy.port}") as client:
        yield client


class _Cutter:
    """Keeps the first `times` answers for itself, and remembers them."""

    def __init__(self, times: int) -> None:
        self._left = times
        self._lock = threading.Lock()
        self.seen: list[bytes] = []

    def __call__(self, data: bytes) -> bool:
        with self._lock:
            if self._left == 0:
                return False
            self._left -= 1
            self.seen.append(data)
            return True


def test_a_client_whose_answer_was_lost_retries_and_gets_it(
    flaky: RelayClient, proxy: Proxy
) -> None:
    sender, recipient, key, message_id = make_device(), make_device(), new_key(), uuid4()
    proxy.on_answer = cutter = _Cutter(times=3)
    for _ in range(3):
        with pytest.raises(httpx.TransportError):
            flaky.submit(sender, recipient, message_id=message_id, key=key)
    answer = flaky.submit(sender, recipient, message_id=message_id, key=key)

    lost = [data.partition(b"\r\n\r\n") for data in cutter.seen]
    assert [head.split()[1] for head, _, _ in lost] == [b"201"] * 3
    # The head and the body may come in two pieces, and the cut is at the first one.
    assert all(answer.content.startswith(body) for _, _, body in lost)
    assert (answer.status_code, answer.headers["Idempotency-Replayed"]) == (201, "true")
    assert Record.objects.get().body == answer.text  # byte for byte what was kept
    envelope = Envelope.objects.get(device_id=recipient.id)
    assert answer.json()["accepted_at"] == rfc3339(envelope.accepted_at)
    assert [entry["message_id"] for entry in flaky.walk(recipient)] == [str(message_id)]
    journal = Journal()
    journal.add(recipient.id, message_id, key, answer.text)
    assert_sound(journal)


def test_many_lost_answers_at_once_leave_one_envelope_each(
    flaky: RelayClient, proxy: Proxy
) -> None:
    sender, recipient = make_device(), make_device()
    keys = [(new_key(), uuid4()) for _ in range(20)]
    proxy.on_answer = _Cutter(times=20)

    def one(key, message_id):  # type: ignore[no-untyped-def]
        def call() -> httpx.Response:
            for _ in range(40):
                try:
                    answer = flaky.submit(sender, recipient, message_id=message_id, key=key)
                except httpx.TransportError:
                    continue
                if answer.status_code == 201:
                    return answer
                assert answer.json()["retryable"] is True
            raise AssertionError("no answer came")

        return call

    answers = together([one(*entry) for entry in keys])
    assert proxy.cuts == 20
    journal = Journal()
    for (key, message_id), answer in zip(keys, answers, strict=True):
        journal.add(recipient.id, message_id, key, answer.text)
    assert Envelope.objects.filter(device_id=recipient.id).count() == 20
    assert_sound(journal)


def test_a_lost_answer_of_an_acknowledgement_is_the_same_again(
    flaky: RelayClient, proxy: Proxy
) -> None:
    sender, recipient = make_device(), make_device()
    known, unknown = uuid4(), uuid4()
    assert flaky.submit(sender, recipient, message_id=known).status_code == 201
    proxy.on_answer = _Cutter(times=1)
    with pytest.raises(httpx.TransportError):
        flaky.acknowledge(recipient, [known, unknown])
    # Without a key: the flip happened, and the repeated call says the same all the same.
    assert flaky.acknowledge(recipient, [known, unknown]).json()["results"] == [
        {"message_id": str(known), "status": "acknowledged"},
        {"message_id": str(unknown), "status": "unknown"},
    ]
    assert_sound()


def test_a_lost_answer_of_a_disabling_is_the_same_again(flaky: RelayClient, proxy: Proxy) -> None:
    device, provisioner, key = make_device(), make_provisioner(), new_key()
    proxy.on_answer = _Cutter(times=1)
    call = {"headers": {"Idempotency-Key": key}}
    with pytest.raises(httpx.TransportError):
        flaky.call("DELETE", f"/v1/devices/{device.id}", provisioner, **call)
    answer = flaky.call("DELETE", f"/v1/devices/{device.id}", provisioner, **call)
    assert answer.status_code == 202
    assert answer.json() == {"device_id": str(device.id), "state": "disabled"}
