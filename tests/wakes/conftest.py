"""What the tests of wakes stand on: an authority, servers to call, and a fresh wiring."""

import dataclasses
import secrets
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from pytest_django import Settings

from config.kernel.shards import shard_of_device
from outbox.topics import EventRef
from relay.callers import Caller, CallerKind
from relay.services.wakes import wake_put
from relay.wakes import wiring
from relay.wakes.registrations import Gateway, WebPush
from tests.client import make_device
from tests.factories import now, store
from tests.wakes.authority import Authority
from tests.wakes.servers import HttpServer
from tests.wakes.subscriber import Subscriber

SECRET = "a gateway secret of these tests, µ"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whoever trusts it trusts the servers of these tests."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def push_service(authority: Authority) -> Iterator[HttpServer]:
    """A push service at https://localhost."""
    with HttpServer(tls=authority.server_context("localhost", "127.0.0.1")) as server:
        yield server


@pytest.fixture
def gateway() -> Iterator[HttpServer]:
    """The deployment's gateway, at http://127.0.0.1."""
    with HttpServer() as server:
        yield server


class Wiring:
    """The parts that send wakes, with other settings."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settings, self._monkeypatch = settings, monkeypatch

    def set(self, **changes: Any) -> None:
        """Settings, by name."""
        for name, value in changes.items():
            setattr(self._settings, name, value)
        wiring.parts.cache_clear()

    def use_gateway(self, url: str) -> None:
        """Gateway wakes go there."""
        self.set(WAKE_GATEWAY_URL=url, WAKE_GATEWAY_SECRET=SECRET)

    def replace(self, **changes: Any) -> wiring.Parts:
        """Other parts than the settings would give."""
        made = dataclasses.replace(wiring.parts(), **changes)
        self._monkeypatch.setattr(wiring, "parts", lambda: made)
        return made


@pytest.fixture
def wired(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> Iterator[Wiring]:
    """Wakes may reach this machine and trust the tests' authority; nothing is debounced."""
    made = Wiring(settings, monkeypatch)
    made.set(
        WAKE_EGRESS_ALLOW=["localhost", "127.0.0.1"],
        WAKE_CA_FILE=authority.file,
        WAKE_DEBOUNCE_MS=0,
        WAKE_GATEWAY_URL=None,
        WAKE_GATEWAY_SECRET=None,
    )
    yield made
    monkeypatch.undo()
    wiring.parts().client.close()
    wiring.parts.cache_clear()


def register(device_id: UUID, registration: WebPush | Gateway) -> None:
    """As `PUT /v1/device/wake` does, without the check of the endpoint."""
    caller = Caller(CallerKind.DEVICE, device_id)
    assert wake_put(caller=caller, key=None, registration=registration).status == 200


def gateway_device(handle: str | None = None) -> UUID:
    """A device that is woken through the gateway, with an envelope waiting."""
    device_id = make_device().id
    register(device_id, Gateway(handle or secrets.token_hex(8)))
    store(device_id)
    return device_id


def push_device(endpoint: str, subscriber: Subscriber | None = None) -> UUID:
    """A device that is woken by Web Push, with an envelope waiting."""
    device_id, keys = make_device().id, subscriber or Subscriber()
    register(device_id, WebPush(endpoint, keys.p256dh, keys.auth))
    store(device_id)
    return device_id


def event(device_id: UUID, *, failures: int = 0) -> EventRef:
    """An event as the outbox hands it over."""
    return EventRef(
        shard=shard_of_device(device_id),
        event_id=uuid4(),
        device_id=device_id,
        kind="",
        schema_version=1,
        failures=failures,
        created_at=now(),
    )
