"""Making, rotating and disabling devices (PROTOCOL section 6)."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

from config.kernel import clock
from config.kernel.database import durable_transaction
from config.kernel.problems import DeviceDisabled, NotFound
from config.kernel.shards import shard_of_device
from idempotency.fingerprints import request_fingerprint
from quotas import usage as queue
from relay import tokens
from relay.callers import Caller
from relay.models import Device, DeviceState
from relay.services.once import Answer, Effect, Request, run_once

PUT_ROUTE = "PUT /v1/devices/{device_id}"
DELETE_ROUTE = "DELETE /v1/devices/{device_id}"


@dataclass(frozen=True)
class IssuedDevice:
    """A new device and its token, which is shown this once."""

    device_id: UUID
    token: str = field(repr=False)


def device_put(*, caller: Caller, key: str | None, device_id: UUID, token_sha256: bytes) -> Answer:
    """Make a device (201), or replace its credential (200).

    Raises DeviceDisabled for an id whose device was disabled and still has receipts.
    """
    fingerprint = request_fingerprint(route=PUT_ROUTE, fields=(device_id.bytes, token_sha256))
    request = Request(caller, PUT_ROUTE, key, fingerprint)
    return run_once(request, lambda: _put(device_id, token_sha256), queues=[device_id])


def device_disable(*, caller: Caller, key: str | None, device_id: UUID) -> Answer:
    """Disable a device: 202, also when it was before. Raises NotFound for an unknown id.

    From the commit on it is no recipient any more: the queue is closed under the lock that
    every submit takes. Its mail is removed in the background, the row with its last receipt.
    """
    fingerprint = request_fingerprint(route=DELETE_ROUTE, fields=(device_id.bytes,))
    request = Request(caller, DELETE_ROUTE, key, fingerprint)
    return run_once(request, lambda: _disable(device_id), queues=[device_id])


def device_create() -> IssuedDevice:
    """Make a device with a fresh id and secret, for operators and load tests."""
    device_id, secret = uuid4(), tokens.new_secret()
    with durable_transaction():
        _put(device_id, secret.sha256)
    return IssuedDevice(device_id, tokens.device_token(device_id, secret))


def device_disable_by_operator(*, device_id: UUID) -> None:
    """Disable a device from the command line. Raises NotFound for an unknown id."""
    with durable_transaction():
        _disable(device_id)


def _put(device_id: UUID, token_sha256: bytes) -> Effect:
    usage = queue.usage_open(shard=shard_of_device(device_id), device_id=device_id)
    if usage.closed_at is not None:
        raise DeviceDisabled
    now = clock.read()
    _, made = Device.objects.update_or_create(
        device_id=device_id,
        defaults={"token_sha256": token_sha256},
        create_defaults={"token_sha256": token_sha256, "created_at": now},
    )
    return Effect(201 if made else 200, _document(device_id, DeviceState.ACTIVE), now)


def _disable(device_id: UUID) -> Effect:
    usage = queue.usage_lock(shard=shard_of_device(device_id), device_id=device_id)
    if usage is None:
        raise NotFound("There is no device with this id.")
    now = clock.read()
    queue.close(usage=usage, now=now)
    _mark_disabled(device_id, now)
    return Effect(202, _document(device_id, DeviceState.DISABLED), now)


def _mark_disabled(device_id: UUID, now: datetime) -> None:
    """The credential stops with this; a wake registration has no use any more."""
    Device.objects.filter(device_id=device_id, state=DeviceState.ACTIVE).update(
        state=DeviceState.DISABLED, disabled_at=now, wake_transport=None, wake_sealed=None
    )


def _document(device_id: UUID, state: DeviceState) -> dict[str, str]:
    return {"device_id": str(device_id), "state": str(state)}
