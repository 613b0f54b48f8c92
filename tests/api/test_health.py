"""Whether a process lives, can work, and what it counts (PROTOCOL section 9)."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.api.helpers import assert_problem, closed_port
from tests.client import RelayClient, make_device, make_provisioner
from tests.conftest import RelayProcess

TOKEN = "metrics-token-of-the-tests"


# --- A healthy process ------------------------------------------------------------------------


def test_a_healthy_process_lives_and_is_ready(relay: RelayClient) -> None:
    alive, ready = relay.http.get("/livez"), relay.http.get("/readyz")
    assert (alive.status_code, alive.json()["status"]) == (200, "ok")
    assert (ready.status_code, ready.json()["status"]) == (200, "ok")
    assert set(ready.json()["checks"].values()) == {"ok"}


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_the_health_addresses_are_read_only_and_need_no_token(
    relay: RelayClient, path: str
) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = relay.http.request(method, path)
        assert_problem(answer, "METHOD_NOT_ALLOWED")
        assert "GET" in answer.headers["allow"]
    assert relay.http.head(path).status_code == 200
    answer = relay.http.get(path, headers={"Authorization": "Bearer nonsense"})
    assert answer.status_code == 200


# --- Metrics ----------------------------------------------------------------------------------


def test_metrics_are_prometheus_text_for_loopback_when_there_is_no_token(
    relay: RelayClient,
) -> None:
    answer = relay.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
    assert all(line.rsplit(" ", 1)[1] for line in lines)
    assert any(line.startswith("relay_") for line in lines)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "nonsense"])
def test_without_a_token_nobody_behind_a_proxy_reads_metrics(
    relay: RelayClient, address: str
) -> None:
    answer = relay.http.get("/metrics", headers={"X-Forwarded-For": address})
    assert answer.status_code in (401, 403)


def test_metrics_hold_no_id_no_token_and_no_address(relay: RelayClient) -> None:
    sender, recipient, message_id = make_device(), make_device(), uuid4()
    relay.submit(sender, recipient, message_id=message_id, key="canary-key").raise_for_status()
    relay.call("PUT", f"/v1/devices/{uuid4()}", make_provisioner(), json={"token_sha256": "0" * 64})
    text = relay.http.get("/metrics").text
    for secret in (sender.id, recipient.id, message_id, sender.token, "canary-key", "127.0.0.1"):
        assert str(secret) not in text


@pytest.fixture(scope="module")
def guarded(
    relay_process: RelayProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RelayClient]:
    """A relay that has a METRICS_TOKEN, and no Redis that answers."""
    process = RelayProcess(
        tmp_path_factory.mktemp("guarded") / "web.log",
        METRICS_TOKEN=TOKEN,
        REDIS_URL=f"redis://127.0.0.1:{closed_port()}/0",
    )
    process.start()
    with RelayClient(process.url) as client:
        yield client
    process.stop()


def test_with_a_token_only_its_holder_reads_metrics(guarded: RelayClient) -> None:
    device = make_device()
    wrong = [
        *(None, "", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN),
        *(f"Basic {TOKEN}", f"Bearer {device.token}", "Bearer caf\u00e9"),
    ]
    for header in wrong:
        headers = {} if header is None else {"Authorization": header.encode("latin-1")}
        assert_problem(guarded.http.get("/metrics", headers=headers), "UNAUTHENTICATED")
    for headers in ({}, {"X-Forwarded-For": "10.1.2.3"}):
        allowed = {"Authorization": f"Bearer {TOKEN}", **headers}
        assert guarded.http.get("/metrics", headers=allowed).status_code == 200


def test_one_process_tells_what_all_that_share_a_directory_counted(
    relay_process: RelayProcess, tmp_path: Path
) -> None:
    (tmp_path / "counts").mkdir()
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "counts")}
    first, second = (RelayProcess(tmp_path / f"{n}.log", **shared) for n in (1, 2))
    for process in (first, second):
        process.start()
    try:
        for url in (first.url, first.url, second.url):
            httpx.put(f"{url}/v1/device")  # refused, and counted
        counted = 'relay_requests_total{code="METHOD_NOT_ALLOWED",method="PUT"'
        for url in (first.url, second.url):
            lines = httpx.get(f"{url}/metrics").text.splitlines()
            assert [line[-4:] for line in lines if line.startswith(counted)] == [" 3.0"]
    finally:
        first.stop()
        second.stop()


# --- Redis away -------------------------------------------------------------------------------


def test_without_redis_a_process_is_degraded_and_still_ready(guarded: RelayClient) -> None:
    ready = guarded.http.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert guarded.http.get("/livez").status_code == 200


def test_without_redis_every_call_works(guarded: RelayClient) -> None:
    sender, recipient, provisioner = make_device(), make_device(), make_provisioner()
    accepted = guarded.submit(sender, recipient)
    assert accepted.status_code == 201
    message_id = accepted.json()["message_id"]
    assert [each["message_id"] for each in guarded.walk(recipient)] == [message_id]
    assert guarded.device(recipient).json()["pending"]["count"] == 1
    [result] = guarded.acknowledge(recipient, [message_id]).json()["results"]
    assert result["status"] == "acknowledged"
    path = f"/v1/devices/{uuid4()}"
    made = guarded.call("PUT", path, provisioner, json={"token_sha256": "0" * 64})
    assert made.status_code == 201
    assert guarded.call("DELETE", path, provisioner).status_code == 202
