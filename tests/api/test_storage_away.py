"""PostgreSQL away, empty or read-only (PROTOCOL sections 1 and 9)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from tests.api.helpers import (
    JSON,
    RelayWithoutDatabase,
    assert_problem,
    closed_port,
    envelope_for,
    post,
    query,
    untouched,
    without_request_id,
)
from tests.client import Party, RelayClient, make_device, make_provisioner
from tests.conftest import test_database_url


@contextmanager
def _relay_on(database_url: str, log: Path) -> Iterator[RelayClient]:
    """A relay on another database, or on none."""
    process = RelayWithoutDatabase(log, DATABASE_URL=database_url)
    process.start()
    try:
        with RelayClient(process.url) as client:
            yield client
    finally:
        process.stop()


# --- Away -------------------------------------------------------------------------------------

SOME_ID = UUID("6f8e1c9a-2b4d-4f6a-8c0e-1a3b5c7d9e0f")
NOBODY = Party(SOME_ID, f"rld1.{SOME_ID}.{'A' * 43}")


@pytest.fixture(scope="module")
def orphaned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayClient]:
    """A relay whose PostgreSQL does not answer."""
    url = f"postgresql://relay:relay@127.0.0.1:{closed_port()}/relay"
    with _relay_on(url, tmp_path_factory.mktemp("orphaned") / "web.log") as client:
        yield client


def test_without_postgresql_a_process_lives_and_is_not_ready(orphaned: RelayClient) -> None:
    assert orphaned.http.get("/livez").status_code == 200
    ready = orphaned.http.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["status"] not in ("ok", "degraded")
    assert orphaned.http.get("/metrics").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/envelopes", None),
        ("POST", "/v1/envelopes", envelope_for(SOME_ID)),
        ("POST", "/v1/acks", {"message_ids": [str(SOME_ID)]}),
        ("PUT", f"/v1/devices/{SOME_ID}", {"token_sha256": "0" * 64}),
        ("DELETE", f"/v1/devices/{SOME_ID}", None),
        ("GET", "/v1/device", None),
        ("GET", "/v1/instance", None),
    ],
)
def test_without_postgresql_every_call_says_so_and_when_to_come_again(
    orphaned: RelayClient, method: str, path: str, body: object
) -> None:
    headers = {**JSON, "Idempotency-Key": "k"}
    options = {} if body is None else {"json": body}
    answer = orphaned.call(method, path, NOBODY, headers=headers, **options)
    problem = assert_problem(answer, "STORAGE_UNAVAILABLE")
    assert "127.0.0.1" not in answer.text
    assert "psycopg" not in answer.text
    again = orphaned.call(method, path, NOBODY, headers=headers, **options)
    assert without_request_id(again) == {
        name: value for name, value in problem.items() if name not in ("request_id", "retry_after")
    }


def test_without_postgresql_what_needs_none_is_refused_as_ever(orphaned: RelayClient) -> None:
    assert_problem(orphaned.http.get("/v1/nothing"), "NOT_FOUND")
    assert_problem(orphaned.http.patch("/v1/acks"), "METHOD_NOT_ALLOWED")
    assert_problem(orphaned.http.get("/v1/device"), "UNAUTHENTICATED")
    assert_problem(post(orphaned, None, b"{"), "UNAUTHENTICATED")
    assert orphaned.http.get("/api/errors").status_code == 200


# --- Read-only --------------------------------------------------------------------------------


def test_a_read_only_postgresql_serves_reads_and_refuses_writes(tmp_path: Path) -> None:
    device, provisioner = make_device(), make_provisioner()
    options = quote("-c default_transaction_read_only=on")
    with _relay_on(f"{test_database_url()}?options={options}", tmp_path / "log") as relay:
        for path in ("/v1/envelopes", "/v1/device", "/v1/instance"):
            assert relay.call("GET", path, device).status_code == 200
        put = {"json": {"token_sha256": "0" * 64}}
        with untouched():
            for answer in (
                relay.submit(device, device),
                relay.acknowledge(device, [uuid4()], key="k"),
                relay.call("PUT", f"/v1/devices/{uuid4()}", provisioner, **put),
                relay.call("DELETE", f"/v1/devices/{device.id}", provisioner),
            ):
                assert_problem(answer, "STORAGE_UNAVAILABLE")


# --- Empty ------------------------------------------------------------------------------------


def test_a_database_without_the_migrations_is_not_ready(tmp_path: Path) -> None:
    name = f"relay_empty_{uuid4().hex[:12]}"
    query(f"CREATE DATABASE {name}")
    try:
        url = test_database_url().rsplit("/", 1)[0] + f"/{name}"
        with _relay_on(url, tmp_path / "log") as relay:
            ready = relay.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["status"] not in ("ok", "degraded")
            assert relay.http.get("/livez").status_code == 200
    finally:
        query(f"DROP DATABASE {name} WITH (FORCE)")
