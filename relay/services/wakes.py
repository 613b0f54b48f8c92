"""Registering how a device is woken, and forgetting it (PROTOCOL section 6)."""

from uuid import UUID

from config.kernel import clock
from config.kernel.problems import Unauthenticated
from idempotency.fingerprints import request_fingerprint
from relay.callers import Caller
from relay.models import Device, DeviceState
from relay.services.once import Answer, Effect, Request, run_once
from relay.wakes.registrations import Registration, seal

PUT_ROUTE = "PUT /v1/device/wake"
DELETE_ROUTE = "DELETE /v1/device/wake"


def wake_put(*, caller: Caller, key: str | None, registration: Registration) -> Answer:
    """Register how the calling device is woken, in place of what was registered: 200.

    Raises Unauthenticated for a device that was disabled a moment ago.
    """
    fingerprint = request_fingerprint(route=PUT_ROUTE, fields=registration.fields())
    request = Request(caller, PUT_ROUTE, key, fingerprint)
    return run_once(request, lambda: _put(caller.id, registration), queues=[])


def wake_delete(*, caller: Caller, key: str | None) -> Answer:
    """Forget how the calling device is woken: 204, also when there was nothing to forget."""
    fingerprint = request_fingerprint(route=DELETE_ROUTE, fields=())
    request = Request(caller, DELETE_ROUTE, key, fingerprint)
    return run_once(request, lambda: _delete(caller.id), queues=[])


def _put(device_id: UUID, registration: Registration) -> Effect:
    now = clock.read()
    changed = Device.objects.filter(device_id=device_id, state=DeviceState.ACTIVE).update(
        wake_transport=registration.transport,
        wake_sealed=seal(device_id=device_id, registration=registration),
    )
    if not changed:
        raise Unauthenticated
    return Effect(200, {"transport": str(registration.transport)}, now)


def _delete(device_id: UUID) -> Effect:
    now = clock.read()
    Device.objects.filter(device_id=device_id, wake_transport__isnull=False).update(
        wake_transport=None, wake_sealed=None
    )
    return Effect(204, None, now)


def wake_drop(*, device_id: UUID, sealed: bytes) -> bool:
    """Forget a registration that its push service no longer knows; whether it was still there.

    `sealed` is how it lay in its row when it was read: one made since, even for the same
    endpoint, has other bytes and stays.
    """
    same = Device.objects.filter(device_id=device_id, wake_sealed=sealed)
    return same.update(wake_transport=None, wake_sealed=None) > 0
