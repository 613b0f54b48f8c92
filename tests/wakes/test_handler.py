"""What the outbox hands over, and what it gets back (OUTBOX.md, points 5 to 7)."""

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from config.kernel.database import durable_transaction
from outbox import topics
from outbox.topics import Disposition, Settlement
from relay.models import Device, Envelope
from relay.selectors.wakes import Target, wake_targets
from relay.services.devices import device_disable_by_operator
from relay.wakes import handler, wiring
from relay.wakes.codes import Code
from relay.wakes.handler import handle
from relay.wakes.hosts import PAUSE_SECONDS, STRIKES, Hosts
from relay.wakes.recent import Recent, mark_of
from relay.wakes.registrations import Gateway, seal
from relay.wakes.scheduling import Task
from relay.wakes.senders import Outcome, Sender
from tests.client import make_device
from tests.factories import now, store, store_due, store_ended
from tests.wakes.authority import Authority
from tests.wakes.conftest import Wiring, event, gateway_device, push_device, register
from tests.wakes.servers import Answer, HttpServer, RawServer, Received, hang

SENT = Settlement(Disposition.DONE, Code.SENT)
COALESCED = Settlement(Disposition.DONE, Code.COALESCED)
NOT_NEEDED = Settlement(Disposition.DONE, Code.NOT_NEEDED)
DEBOUNCED = Settlement(Disposition.LATER, Code.DEBOUNCED, 1.0)
TIMED_OUT = Settlement(Disposition.FAILED, Code.TIMEOUT)
AWAY = Settlement(Disposition.LATER, Code.HOST_AWAY, 10.0)


def test_the_topic_is_registered_for_its_queue() -> None:
    topic = topics.find("wake")
    assert topic is not None
    assert (topic.queue, topic.handler, topic.schema_versions) == ("wake", handle, {1})


def test_ten_thousand_events_for_one_device_are_one_wake(
    wired: Wiring, gateway: HttpServer
) -> None:
    wired.use_gateway(gateway.url())
    device_id = gateway_device()
    events = [event(device_id) for _ in range(10_000)]
    with CaptureQueriesContext(connection) as queries:
        settlements = handle(events, 20)
    assert len(gateway.received) == 1
    assert Counter(settlements.values()) == {SENT: 1, COALESCED: 9_999}
    assert settlements[events[-1].event_id] == SENT  # the newest speaks for all
    assert set(settlements) == {each.event_id for each in events}
    about_devices = [query for query in queries if "relay_device" in query["sql"]]
    assert len(about_devices) == 1
    assert len(queries) <= 3  # beside it the clock, and the retention when it is not known


def test_one_read_for_many_devices(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    device_ids = [gateway_device() for _ in range(30)]
    events = [event(device_id) for device_id in device_ids for _ in range(3)]
    with CaptureQueriesContext(connection) as queries:
        settlements = handle(events, 20)
    assert Counter(settlements.values()) == {SENT: 30, COALESCED: 60}
    assert len(gateway.received) == 30
    assert len(queries) <= 3


def test_no_events_are_no_work(wired: Wiring) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert handle([], 20) == {}
    assert len(queries) == 0


def test_of_a_failing_device_one_event_is_left_and_it_is_the_freshest(wired: Wiring) -> None:
    """Else a burst of mail would leave as many events to be tried one by one."""
    with RawServer(hang) as server:
        wired.use_gateway(f"http://127.0.0.1:{server.port}/")
        wired.replace(call_seconds=0.2)
        device_id = gateway_device()
        worn, fresh, fresher = event(device_id, failures=7), event(device_id), event(device_id)
        assert handle([fresher, fresh, worn], 20) == {
            worn.event_id: COALESCED,
            fresh.event_id: COALESCED,
            fresher.event_id: TIMED_OUT,
        }


def test_nobody_is_woken_in_vain(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    unregistered = make_device().id
    store(unregistered)
    acknowledged, expired, empty, disabled = (make_device().id for _ in range(4))
    for device_id in (acknowledged, expired, empty, disabled):
        register(device_id, Gateway("handle"))
    store_ended(acknowledged)
    store_due(expired)  # its time is up, and no sweep came by yet
    store(disabled)
    sealed = Device.objects.get(device_id=disabled).wake_sealed
    device_disable_by_operator(device_id=disabled)
    # As after a restore in which only the registration came back.
    Device.objects.filter(device_id=disabled).update(wake_sealed=sealed)
    devices = [unregistered, acknowledged, expired, empty, disabled, uuid4()]
    events = [event(device_id) for device_id in devices]
    assert handle(events, 20) == {each.event_id: NOT_NEEDED for each in events}
    assert gateway.connections == 0
    # And those that mail waits for are woken again.
    store(acknowledged)
    again = event(acknowledged)
    assert handle([again], 20) == {again.event_id: SENT}


def test_a_wake_never_happens_inside_a_transaction(wired: Wiring) -> None:
    with durable_transaction(), pytest.raises(RuntimeError, match="transaction"):
        handle([event(uuid4())], 20)


def test_a_registration_that_does_not_open_fails_alone(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    good, bad = gateway_device(), gateway_device()
    moved = seal(device_id=good, registration=Gateway("handle"))
    Device.objects.filter(device_id=bad).update(wake_sealed=moved)
    first, second = event(good), event(bad)
    assert handle([first, second], 20) == {
        first.event_id: SENT,
        second.event_id: Settlement(Disposition.FAILED, Code.SEALED_SHUT),
    }
    assert Device.objects.get(device_id=bad).wake_sealed is not None


def test_a_bug_in_one_wake_is_not_its_neighbours_trouble(
    wired: Wiring, gateway: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relay.wakes import senders

    wired.use_gateway(gateway.url())
    good, bad = gateway_device("good"), gateway_device("bad")
    real = senders.gateway.wake_call

    def broken(*, registration: Gateway, **rest: object) -> object:
        if registration.handle == "bad":
            raise ZeroDivisionError
        return real(registration=registration, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(senders.gateway, "wake_call", broken)
    first, second = event(good), event(bad)
    assert handle([first, second], 20) == {
        first.event_id: SENT,
        second.event_id: Settlement(Disposition.FAILED, Code.BUG),
    }


def test_one_hanging_device_slows_no_other(wired: Wiring, push_service: HttpServer) -> None:
    with RawServer(hang) as hanging:
        wired.replace(threads=4, per_host=2, call_seconds=2)
        endpoint = f"https://127.0.0.1:{hanging.port}/"
        stuck = [event(push_device(endpoint)) for _ in range(2)]
        good = [event(push_device(push_service.url("/up", host="localhost"))) for _ in range(30)]
        began = time.monotonic()
        settlements = handle(stuck + good, 20)
        assert time.monotonic() - began > 1.9  # they did hang
    assert {settlements[each.event_id] for each in good} == {SENT}
    assert {settlements[each.event_id] for each in stuck} == {TIMED_OUT}
    assert max(received.at for received in push_service.received) - began < 1.9


class Gauge:
    """The most requests under way at once; each waits until `wanted` of them are."""

    def __init__(self, wanted: int) -> None:
        self._meet = threading.Barrier(wanted)
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __call__(self, received: Received) -> Answer:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._meet.wait(10)
        with self._lock:
            self._now -= 1
        return Answer()


def test_a_few_calls_at_once_to_one_host(wired: Wiring, authority: Authority) -> None:
    wired.replace(threads=32, per_host=3)
    with ExitStack() as stack:
        servers, gauges, urls = [], [], []
        for _ in range(2):
            server = HttpServer(tls=authority.server_context("127.0.0.1"))
            servers.append(stack.enter_context(server))
            gauges.append(Gauge(3))
            server.answer = gauges[-1]
            urls += [server.url()] * 9
        events = [event(push_device(url)) for url in urls]
        assert Counter(handle(events, 20).values()) == {SENT: 18}
        assert [gauge.most for gauge in gauges] == [3, 3]


def test_the_gateway_may_take_half_of_the_threads(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    wired.replace(threads=12, per_host=2)
    gateway.answer = gauge = Gauge(6)
    events = [event(gateway_device()) for _ in range(18)]
    assert Counter(handle(events, 20).values()) == {SENT: 18}
    assert gauge.most == 6


def test_the_pool_is_as_large_as_its_setting(wired: Wiring, push_service: HttpServer) -> None:
    wired.replace(threads=2, per_host=8)
    push_service.answer = gauge = Gauge(2)
    events = [event(push_device(push_service.url("/up", host="localhost"))) for _ in range(10)]
    assert Counter(handle(events, 20).values()) == {SENT: 10}
    assert gauge.most == 2


def test_what_there_is_no_time_for_is_left_out(wired: Wiring) -> None:
    with RawServer(hang) as server:
        wired.use_gateway(f"http://127.0.0.1:{server.port}/")
        waiting, idle = event(gateway_device()), event(make_device().id)
        began = time.monotonic()
        settlements = handle([waiting, idle], 1.2)
        assert time.monotonic() - began < 1.2
    # A call that was not given its five seconds is nobody's failure.
    assert settlements == {idle.event_id: NOT_NEEDED}


def test_a_call_is_over_when_its_batch_is(wired: Wiring) -> None:
    with RawServer(hang) as server:
        wired.use_gateway(f"http://127.0.0.1:{server.port}/")
        device_id, began = gateway_device(), time.monotonic()
        sender = Sender(
            parts=wiring.parts(), now=now(), read_at=began, ttl_seconds=60, end_before=began + 0.4
        )
        [target] = wake_targets(device_ids=[device_id], now=now())
        task = sender.task(target, uuid4())
        assert isinstance(task, Task)
        assert task.run() == Outcome(target, None)
        assert time.monotonic() - began < 4


def test_no_call_begins_after_the_batch_s_time(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    wired.replace(batch_seconds=0.0)
    first, second = event(gateway_device()), event(gateway_device())
    assert handle([first, second], 20) == {}
    assert gateway.connections == 0


def gateway_events(count: int) -> list[topics.EventRef]:
    return [event(gateway_device()) for _ in range(count)]


def test_a_gateway_that_is_away_is_left_alone_for_a_while(wired: Wiring) -> None:
    moment = 1_000.0
    with RawServer(hang) as server:
        wired.use_gateway(f"http://127.0.0.1:{server.port}/")
        wired.replace(
            hosts=Hosts(monotonic=lambda: moment), threads=2, per_host=1, call_seconds=0.2
        )
        found = Counter(handle(gateway_events(10), 20).values())
        assert found == {TIMED_OUT: STRIKES, AWAY: 10 - STRIKES}
        assert Counter(handle(gateway_events(5), 20).values()) == {AWAY: 5}
        assert server.connections == STRIKES
        moment += PAUSE_SECONDS
        assert Counter(handle(gateway_events(5), 20).values()) == {TIMED_OUT: 1, AWAY: 4}


def end_mark(device_id: UUID) -> None:
    """The time of a device's mark is over."""
    assert redis.Redis.from_url(settings.REDIS_URL).delete(mark_of(device_id)) == 1


def test_the_last_envelope_of_a_burst_gets_a_wake_too(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    wired.set(WAKE_DEBOUNCE_MS=60_000)
    device_id, other = gateway_device("one"), gateway_device("other")
    first, second, third = event(device_id), event(device_id), event(device_id)
    assert handle([first], 20) == {first.event_id: SENT}
    assert handle([second, third, apart := event(other)], 20) == {
        second.event_id: COALESCED,
        third.event_id: DEBOUNCED,
        apart.event_id: SENT,
    }
    assert len(gateway.received) == 2
    end_mark(device_id)
    assert handle([third], 20) == {third.event_id: SENT}
    assert [json.loads(each.body)["handle"] for each in gateway.received] == ["one", "other", "one"]


def test_of_a_burst_over_several_batches_one_event_comes_again(
    wired: Wiring, gateway: HttpServer
) -> None:
    wired.use_gateway(gateway.url())
    wired.set(WAKE_DEBOUNCE_MS=60_000)
    device_id = gateway_device()
    first, held, *more = (event(device_id) for _ in range(6))
    assert handle([first], 20) == {first.event_id: SENT}
    assert handle([held], 20) == {held.event_id: DEBOUNCED}
    for each in more[:2]:
        assert handle([each], 20) == {each.event_id: COALESCED}
    assert handle([held], 20) == {held.event_id: DEBOUNCED}
    assert handle([more[2]], 20) == {more[2].event_id: COALESCED}
    end_mark(device_id)
    assert handle([held], 20) == {held.event_id: SENT}
    # That wake is over: for mail that comes now somebody has to come again.
    assert handle([more[3]], 20) == {more[3].event_id: DEBOUNCED}
    assert len(gateway.received) == 2


def test_mail_that_comes_while_another_wake_is_being_read_for_is_not_done_with(
    wired: Wiring, gateway: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event that comes again may have read the queue before the mail was there."""
    wired.use_gateway(gateway.url())
    wired.set(WAKE_DEBOUNCE_MS=60_000)
    device_id = gateway_device()
    first, held, late = event(device_id), event(device_id), event(device_id)
    handle([first], 20)
    handle([held], 20)
    found: list[Mapping[UUID, Settlement]] = []

    def read(**wanted: Any) -> list[Target]:
        targets = wake_targets(**wanted)
        monkeypatch.setattr(handler, "wake_targets", wake_targets)
        found.append(handle([late], 20))  # another worker, at this very moment
        return targets

    monkeypatch.setattr(handler, "wake_targets", read)
    end = handle([held], 20)
    assert found == [{late.event_id: DEBOUNCED}]
    assert end == {held.event_id: COALESCED}  # since the late one comes again


def test_without_redis_a_batch_comes_again_as_a_whole(wired: Wiring, gateway: HttpServer) -> None:
    wired.use_gateway(gateway.url())
    wired.replace(recent=Recent(redis_url="redis://127.0.0.1:1/0", milliseconds=2_000))
    first, second = event(gateway_device()), event(gateway_device())
    away = Settlement(Disposition.LATER, Code.REDIS_AWAY, 1.0)
    assert handle([first, second], 20) == {first.event_id: away, second.event_id: away}
    assert gateway.connections == 0


def test_mail_that_was_fetched_meanwhile_needs_no_second_wake(
    wired: Wiring, gateway: HttpServer
) -> None:
    wired.use_gateway(gateway.url())
    wired.set(WAKE_DEBOUNCE_MS=60_000)
    device_id = gateway_device()
    handle([event(device_id)], 20)
    held = event(device_id)
    assert handle([held], 20) == {held.event_id: DEBOUNCED}
    Envelope.objects.filter(device_id=device_id).delete()
    assert handle([held], 20) == {held.event_id: NOT_NEEDED}
