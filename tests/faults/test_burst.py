"""A burst of mail to one device is a handful of wakes, and one of them after the last envelope."""

import time
from uuid import uuid4

import pytest

from relay.models import Envelope
from tests.api.helpers import post
from tests.client import base64_of, make_device
from tests.concurrency.loads import set_limits
from tests.faults.world import CLOCK, DISPATCHER, MAINTENANCE, WAKES, WEB, World
from tests.properties.batches import verdicts

BATCHES, EACH = 100, 100
DEBOUNCE = 2.0


@pytest.mark.slow
def test_ten_thousand_envelopes_in_a_burst_are_a_handful_of_wakes(world: World) -> None:
    set_limits(pending_count=BATCHES * EACH, actor_rate=1_000_000, address_rate=None)
    world.start(WEB, CLOCK, DISPATCHER, MAINTENANCE)
    world.kill(WAKES)
    world.start(WAKES, WAKE_DEBOUNCE_MS=str(int(DEBOUNCE * 1000)))
    device, _ = world.woken_device()
    sender = make_device()
    began = time.monotonic()
    with world.client() as relay:
        for _ in range(BATCHES):
            entries = [
                {
                    "recipient_device_id": str(device.id),
                    "message_id": str(uuid4()),
                    "protocol_version": 1,
                    "ciphertext": base64_of(b"x" * 64),
                }
                for _ in range(EACH)
            ]
            last_sent = time.monotonic()
            answer = post(relay, sender, {"envelopes": entries}, path="/v1/envelopes/batch")
            assert set(verdicts(answer)) == {"accepted"}
    seconds = time.monotonic() - began
    world.drain()
    world.kill(WAKES)
    wakes = [received.at for received in world.gateway.received]
    assert Envelope.objects.count() == BATCHES * EACH
    assert 2 <= len(wakes) <= seconds / DEBOUNCE + 3
    assert max(wakes) > last_sent
