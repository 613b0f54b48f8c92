"""How tests speak to the relay: over HTTP, as a client would."""

import base64
import secrets
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

import httpx

from config.kernel.database import durable_transaction
from relay.services.devices import device_create
from relay.services.provisioners import provisioner_create
from tests import contract


@dataclass(frozen=True)
class Party:
    """Somebody with a token."""

    id: UUID
    token: str


def make_device() -> Party:
    """A new device."""
    issued = device_create()
    return Party(issued.device_id, issued.token)


def make_provisioner() -> Party:
    """A new provisioner."""
    with durable_transaction():
        issued = provisioner_create(name=f"test-{secrets.token_hex(4)}")
    return Party(issued.provisioner_id, issued.token)


def new_key() -> str:
    """An Idempotency-Key that nobody used."""
    return secrets.token_hex(12)


def base64_of(ciphertext: bytes) -> str:
    """Standard base64 with padding."""
    return base64.b64encode(ciphertext).decode()


class RelayClient:
    """Calls of the protocol, each returning the plain response."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(
            base_url=url,
            timeout=30,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()

    def call(
        self, method: str, path: str, caller: Party | None = None, **options: Any
    ) -> httpx.Response:
        """Any call, with the caller's token."""
        headers = dict(options.pop("headers", {}))
        if caller is not None:
            headers["Authorization"] = f"Bearer {caller.token}"
        response = self.http.request(method, path, headers=headers, **options)
        contract.check(response)
        return response

    def submit(
        self,
        sender: Party,
        recipient: Party | UUID,
        ciphertext: bytes = b"ciphertext",
        *,
        message_id: UUID | None = None,
        key: str | None = None,
        **members: Any,
    ) -> httpx.Response:
        """`POST /v1/envelopes`."""
        body = {
            "recipient_device_id": str(recipient.id if isinstance(recipient, Party) else recipient),
            "message_id": str(message_id or uuid4()),
            "protocol_version": 1,
            "ciphertext": base64_of(ciphertext),
            **members,
        }
        headers = {"Idempotency-Key": key or new_key()}
        return self.call("POST", "/v1/envelopes", sender, json=body, headers=headers)

    def pull(self, device: Party, **query: Any) -> httpx.Response:
        """`GET /v1/envelopes`."""
        return self.call("GET", "/v1/envelopes", device, params=query)

    def walk(self, device: Party, *, limit: int = 50) -> list[dict[str, Any]]:
        """Every envelope of the queue, page by page from the start."""
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": limit}
        while True:
            page = self.pull(device, **query).raise_for_status().json()
            found += page["envelopes"]
            if not page["has_more"]:
                return found
            query["cursor"] = page["next_cursor"]

    def acknowledge(
        self, device: Party, message_ids: list[Any], *, key: str | None = None
    ) -> httpx.Response:
        """`POST /v1/acks`."""
        headers = {} if key is None else {"Idempotency-Key": key}
        body = {"message_ids": [str(message_id) for message_id in message_ids]}
        return self.call("POST", "/v1/acks", device, json=body, headers=headers)

    def device(self, device: Party) -> httpx.Response:
        """`GET /v1/device`."""
        return self.call("GET", "/v1/device", device)
