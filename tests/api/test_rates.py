"""How often a caller may submit (PROTOCOL sections 1 and 8).

Windows are an hour here, so that none ends within a test. Addresses are loopback's, of which
there are 16 million: each test takes one that no other has used.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.api.helpers import (
    assert_problem,
    closed_port,
    envelope_for,
    set_limits,
    untouched,
    without_request_id,
)
from tests.client import Party, RelayClient, make_device, make_provisioner, new_key
from tests.conftest import RelayProcess

HOUR = 3_600


def _address() -> str:
    """A loopback address that nobody else has."""
    return f"127.{secrets.randbelow(255) + 1}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"


@contextmanager
def _from(relay: RelayClient, address: str) -> Iterator[RelayClient]:
    """A client of the same relay that comes from this address."""
    with RelayClient(relay.url) as client:
        client.http.close()
        client.http = httpx.Client(
            base_url=relay.url,
            timeout=30,
            transport=httpx.HTTPTransport(local_address=address, verify=False),
        )
        yield client


def _submit(relay: RelayClient, sender: Party, recipient: Party, **headers: str) -> httpx.Response:
    return relay.call(
        "POST",
        "/v1/envelopes",
        sender,
        json=envelope_for(recipient),
        headers={"Idempotency-Key": new_key(), **headers},
    )


def _codes(answers: list[httpx.Response]) -> list[int]:
    return [answer.status_code for answer in answers]


# --- By actor ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1, 5])
def test_an_actor_submits_its_rate_in_a_window_and_no_more(relay: RelayClient, rate: int) -> None:
    sender, other, recipient = make_device(), make_device(), make_device()
    set_limits(actor_rate=rate, window_seconds=HOUR)
    assert _codes([relay.submit(sender, recipient) for _ in range(rate)]) == [201] * rate
    with untouched():
        refused = relay.submit(sender, recipient)
    problem = assert_problem(refused, "RATE_LIMITED")
    assert 1 <= problem["retry_after"] <= 2 * HOUR
    assert relay.submit(other, recipient).status_code == 201
    assert relay.submit(make_provisioner(), recipient).status_code == 201


def test_only_submits_count(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    set_limits(actor_rate=1, window_seconds=HOUR)
    for _ in range(5):
        assert relay.pull(sender).status_code == 200
        assert relay.device(sender).status_code == 200
        assert relay.acknowledge(sender, [sender.id]).status_code == 200
    message_id = relay.submit(sender, sender).json()["message_id"]
    assert_problem(relay.submit(sender, recipient), "RATE_LIMITED")
    assert [each["message_id"] for each in relay.walk(sender)] == [message_id]
    [result] = relay.acknowledge(sender, [message_id]).json()["results"]
    assert result["status"] == "acknowledged"


def test_what_is_no_submit_by_its_shape_does_not_count(relay: RelayClient) -> None:
    sender = make_device()
    set_limits(actor_rate=1, window_seconds=HOUR)
    for _ in range(3):
        assert relay.submit(sender, sender, protocol_version="1").status_code == 400
    assert relay.submit(sender, sender).status_code == 201


def test_a_provisioner_is_an_actor_like_any(relay: RelayClient) -> None:
    provisioner, recipient = make_provisioner(), make_device()
    set_limits(actor_rate=2, window_seconds=HOUR)
    answers = [relay.submit(provisioner, recipient) for _ in range(3)]
    assert _codes(answers) == [201, 201, 429]


def test_a_recipient_is_not_limited_by_its_senders(relay: RelayClient) -> None:
    senders, recipient = [make_device() for _ in range(5)], make_device()
    set_limits(actor_rate=1, window_seconds=HOUR)
    assert _codes([relay.submit(sender, recipient) for sender in senders]) == [201] * 5
    assert relay.submit(recipient, senders[0]).status_code == 201


# --- By address -------------------------------------------------------------------------------


def test_an_address_submits_its_rate_whoever_sends(relay: RelayClient) -> None:
    recipient = make_device()
    set_limits(address_rate=3, window_seconds=HOUR)
    with _from(relay, _address()) as here, _from(relay, _address()) as elsewhere:
        answers = [_submit(here, make_device(), recipient) for _ in range(4)]
        assert _codes(answers) == [201, 201, 201, 429]
        assert_problem(answers[-1], "RATE_LIMITED")
        assert _submit(elsewhere, make_device(), recipient).status_code == 201


def test_the_refusal_does_not_say_whether_actor_or_address(relay: RelayClient) -> None:
    sender, recipient = make_device(), make_device()
    with _from(relay, _address()) as here:
        set_limits(actor_rate=1, window_seconds=HOUR)
        by_actor = [_submit(here, sender, recipient) for _ in range(2)][-1]
        set_limits(actor_rate=1_000, address_rate=1, window_seconds=HOUR)
        by_address = [_submit(here, make_device(), recipient) for _ in range(2)][-1]
    for answer in (by_actor, by_address):
        assert_problem(answer, "RATE_LIMITED")
    assert without_request_id(by_actor) == without_request_id(by_address)


def test_the_address_rate_can_be_off(relay: RelayClient) -> None:
    recipient = make_device()
    set_limits(address_rate=None)
    with _from(relay, _address()) as here:
        answers = [_submit(here, make_device(), recipient) for _ in range(5)]
    assert _codes(answers) == [201] * 5


def test_without_a_trusted_proxy_x_forwarded_for_means_nothing(relay: RelayClient) -> None:
    recipient, spent = make_device(), _address()
    set_limits(address_rate=2, window_seconds=HOUR)
    with _from(relay, spent) as here, _from(relay, _address()) as elsewhere:
        answers = [
            _submit(here, make_device(), recipient, **{"X-Forwarded-For": _address()})
            for _ in range(3)
        ]
        assert _codes(answers) == [201, 201, 429]
        answer = _submit(elsewhere, make_device(), recipient, **{"X-Forwarded-For": spent})
        assert answer.status_code == 201


@pytest.fixture(scope="module")
def proxied(
    relay_process: RelayProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RelayClient]:
    """A relay behind one proxy of ours."""
    log = tmp_path_factory.mktemp("proxied") / "web.log"
    process = RelayProcess(log, TRUSTED_PROXY_COUNT="1")
    process.start()
    with RelayClient(process.url) as client:
        yield client
    process.stop()


def test_behind_one_proxy_the_last_entry_is_the_address_and_the_rest_is_forged(
    proxied: RelayClient,
) -> None:
    recipient, client, other = make_device(), _address(), _address()
    set_limits(address_rate=3, window_seconds=HOUR)
    forged = [client, f"{other}, {client}", f"x, {_address()},,{_address()} ,  {client}"]
    answers = [
        _submit(proxied, make_device(), recipient, **{"X-Forwarded-For": header})
        for header in [*forged, f"{_address()}, {client}", f"{client}, {other}"]
    ]
    assert _codes(answers) == [201, 201, 201, 429, 201]


def test_behind_one_proxy_an_ipv6_client_is_known_in_every_spelling(proxied: RelayClient) -> None:
    recipient = make_device()
    group = secrets.token_hex(2).lstrip("0") or "1"
    set_limits(address_rate=2, window_seconds=HOUR)
    spellings = [f"2001:db8:{group}::1", f"2001:DB8:{group}:0:0:0:0:1", f"2001:0db8:{group}::0001"]
    answers = [
        _submit(proxied, make_device(), recipient, **{"X-Forwarded-For": spelling})
        for spelling in spellings
    ]
    assert _codes(answers) == [201, 201, 429]


# --- Without Redis ----------------------------------------------------------------------------


def test_without_redis_each_process_limits_by_itself(
    relay: RelayClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    away = f"redis://127.0.0.1:{closed_port()}/0"
    process = RelayProcess(tmp_path_factory.mktemp("alone") / "web.log", REDIS_URL=away)
    process.start()
    try:
        sender, recipient = make_device(), make_device()
        set_limits(actor_rate=3, address_rate=5, window_seconds=HOUR)
        with RelayClient(process.url) as plain, _from(plain, _address()) as alone:
            answers = [_submit(alone, sender, recipient) for _ in range(4)]
            assert _codes(answers) == [201, 201, 201, 429]
            assert_problem(answers[-1], "RATE_LIMITED")
            others = [_submit(alone, make_device(), recipient) for _ in range(3)]
            assert _codes(others) == [201, 201, 429]
            set_limits(actor_rate=1_000, address_rate=None, pending_count=10)
            full = [_submit(alone, sender, recipient) for _ in range(6)]
            assert _codes(full) == [201] * 5 + [429]
            assert_problem(full[-1], "RECIPIENT_QUOTA_EXCEEDED")
    finally:
        process.stop()
