"""The small parts by themselves: marks, hosts, scheduling, logs, the command."""

import io
import json
import logging.config
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
import redis
from django.conf import settings
from django.core.management import call_command

from config.kernel import logs
from relay.wakes import wiring
from relay.wakes.handler import handle
from relay.wakes.hosts import PAUSE_SECONDS, STRIKES, Hosts
from relay.wakes.recent import Recent, RedisAwayError, mark_of
from relay.wakes.scheduling import Task, run_all
from tests.wakes.conftest import Wiring, event, gateway_device, push_device
from tests.wakes.servers import Answer, HttpServer


def marks(milliseconds: int = 60_000, url: str | None = None) -> Recent:
    return Recent(redis_url=url or settings.REDIS_URL, milliseconds=milliseconds)


def test_of_any_number_of_workers_one_takes_the_mark() -> None:
    device_id, workers = uuid4(), [marks() for _ in range(8)]
    start = threading.Barrier(8)

    def take(worker: Recent) -> bool:
        start.wait(10)
        return worker.take(device_id)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(take, workers)) == [False] * 7 + [True]
    assert marks().take(uuid4())


def test_a_mark_names_no_device_and_ends_by_itself() -> None:
    device_id = uuid4()
    marks(milliseconds=50_000).take(device_id)
    server = redis.Redis.from_url(settings.REDIS_URL)
    assert 0 < server.pttl(mark_of(device_id)) <= 50_000
    names = [name.decode() for name in server.keys("*")]
    assert not [name for name in names if device_id.hex[:8] in name]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", None])
def test_without_redis_a_process_remembers_its_marks_and_everybody_comes_again(
    url: str | None,
) -> None:
    recent, device_id = Recent(redis_url=url, milliseconds=60_000), uuid4()
    assert recent.take(device_id)
    assert not recent.take(device_id)
    assert recent.take(uuid4())
    assert recent.comes_again(device_id, uuid4())
    assert recent.comes_again(device_id, uuid4())


def test_striking_out_needs_redis_only_where_something_may_be_written() -> None:
    events = [(uuid4(), uuid4())]
    away = "redis://127.0.0.1:1/0"
    with pytest.raises(RedisAwayError):
        Recent(redis_url=away, milliseconds=1).strike_out(events)
    Recent(redis_url=None, milliseconds=1).strike_out(events)
    Recent(redis_url=away, milliseconds=0).strike_out(events)


def test_an_event_strikes_out_itself_and_no_other() -> None:
    device_id, one, other = uuid4(), uuid4(), uuid4()
    recent = marks()
    assert recent.comes_again(device_id, one)
    recent.strike_out([(device_id, other), (uuid4(), one)])
    assert not marks().comes_again(device_id, other)
    recent.strike_out([(device_id, other), (device_id, one)])
    assert marks().comes_again(device_id, other)


def test_no_debounce_is_no_mark() -> None:
    recent, device_id = marks(milliseconds=0), uuid4()
    assert recent.take(device_id)
    assert recent.take(device_id)


def test_a_host_is_away_after_so_many_calls_without_an_answer_and_back_with_one() -> None:
    now = 0.0
    hosts = Hosts(monotonic=lambda: now)
    for strike in range(STRIKES):
        assert not hosts.is_away("https://a.test")
        hosts.note("https://a.test", answered=False)
        assert hosts.strikes("https://a.test") == strike + 1
    assert hosts.is_away("https://a.test")
    assert not hosts.is_away("https://b.test")
    now = PAUSE_SECONDS
    assert not hosts.is_away("https://a.test")  # somebody may try
    hosts.note("https://a.test", answered=False)
    assert hosts.is_away("https://a.test")
    hosts.note("https://a.test", answered=True)
    assert not hosts.is_away("https://a.test")
    assert hosts.strikes("https://a.test") == 0


def order_of(tasks: list[tuple[str, int, int]], *, threads: int) -> list[str]:
    """In which order tasks (host, most, rank) begin."""
    began: list[str] = []
    run_all(
        [
            Task(host, most, rank, lambda host=host: began.append(host))
            for host, most, rank in tasks
        ],
        threads=threads,
        start_before=time.monotonic() + 10,
        end_before=time.monotonic() + 10,
    )
    return began


def test_hosts_that_answer_come_before_those_that_did_not() -> None:
    tasks = [("bad", 8, 3)] * 2 + [("good", 8, 0)] * 2
    assert order_of(tasks, threads=1) == ["good", "good", "bad", "bad"]


def test_every_host_gets_a_thread_before_one_gets_two() -> None:
    entered, release = threading.Semaphore(0), threading.Event()
    hosts: list[str] = []

    def run(host: str) -> None:
        hosts.append(host)
        entered.release()
        release.wait(10)

    tasks = [Task(host, 8, 0, lambda host=host: run(host)) for host in "aaaaabc"]
    end = time.monotonic() + 10
    thread = threading.Thread(
        target=run_all, args=(tasks,), kwargs={"threads": 3, "start_before": end, "end_before": end}
    )
    thread.start()
    for _ in range(3):
        entered.acquire(timeout=10)
    assert sorted(hosts) == ["a", "b", "c"]
    release.set()
    thread.join(10)


def test_a_line_of_the_log_never_names_an_endpoint(
    wired: Wiring, gateway: HttpServer, push_service: HttpServer
) -> None:
    """At the level with the most words, for wakes that go well and wakes that do not."""
    wired.use_gateway(gateway.url("/canary-gateway"))
    push_service.answer = lambda received: Answer(500, body=b"canary-answer")
    devices = [
        gateway_device("canary-handle"),
        push_device(push_service.url("/canary-path", host="localhost")),
        push_device("https://canary-nowhere.invalid/canary-path"),
        push_device("https://10.0.0.1/canary-path"),
    ]
    log = io.StringIO()
    configuration = logs.configuration("DEBUG")
    configuration["handlers"]["stderr"]["stream"] = log
    logging.config.dictConfig(configuration)
    try:
        handle([event(device_id) for device_id in devices], 20)
    finally:
        logging.config.dictConfig(settings.LOGGING)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    said = {(line["event"], line.get("code"), line.get("devices")) for line in lines}
    assert {
        ("wake.handled", "SENT", 1),
        ("wake.not_sent", "STATUS_5XX", 1),
        ("wake.not_sent", "DNS", 1),
        ("wake.not_sent", "REFUSED_ADDRESS", 1),
    } <= said
    assert "canary" not in log.getvalue()
    assert not [device_id for device_id in devices if str(device_id) in log.getvalue()]


def run_vapid_key(*arguments: str) -> dict[str, str]:
    out = io.StringIO()
    call_command("vapid_key", "--json", *arguments, stdout=out)
    return dict(json.loads(out.getvalue()))


def test_the_command_shows_the_public_key_and_moves_a_derived_one_to_a_file(
    wired: Wiring, tmp_path: Path
) -> None:
    derived = run_vapid_key()
    assert derived["source"] == "derived from SECRET_KEY"
    assert len(derived["public_key"]) == 87
    file = tmp_path / "vapid.pem"
    file.write_text(run_vapid_key("--private")["private_key"])
    wired.set(WAKE_VAPID_KEY_FILE=file, SECRET_KEY="another secret key, of 32 characters")
    assert run_vapid_key() == {"public_key": derived["public_key"], "source": "file"}
    wired.set(WAKE_VAPID_KEY_FILE=None)
    assert run_vapid_key()["public_key"] != derived["public_key"]
    assert wiring.vapid().public_key != derived["public_key"]


def test_threads_that_wait_for_a_host_end_with_its_last_task() -> None:
    end = time.monotonic() + 30
    slow = [Task("slow", 1, 0, lambda: time.sleep(0.02)) for _ in range(3)]
    quick = [Task("quick", 4, 0, lambda: None) for _ in range(4)]
    results = run_all([*slow, *quick], threads=8, start_before=end, end_before=end)
    assert len(results) == 7
    assert time.monotonic() < end - 20
