"""Markers in everything that must not be seen, looked for wherever a process writes (4.9)."""

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.client import Party, RelayClient, make_device, make_provisioner
from tests.concurrency.crowd import Background
from tests.concurrency.loads import set_limits
from tests.concurrency.outside import connect, usage_row_locked, waiting_for_a_lock
from tests.conftest import RelayProcess
from tests.rules.markers import ADDRESS, Markers
from tests.rules.planting import run


@pytest.fixture
def process(_migrated: None, tmp_path: Path) -> Iterator[RelayProcess]:
    """A relay of our own that logs all it can."""
    made = RelayProcess(tmp_path / "web.log", LOG_LEVEL="DEBUG")
    made.start()
    yield made
    made.stop()


def _postgres_log() -> Path | None:
    """PostgreSQL's own log, where the tests started the server."""
    [(directory,)] = run("SHOW data_directory")
    path = Path(directory).parent / "logs" / "postgres.log"
    try:
        return path if path.is_file() else None
    except OSError:
        return None


def _send_everything(relay: RelayClient, markers: Markers) -> list[httpx.Response]:
    """The main job and every kind of failure, each with markers in it."""
    sender, recipient, provisioner = make_device(), make_device(), make_provisioner()
    for name, party in [("sender", sender), ("recipient", recipient), ("provisioner", provisioner)]:
        markers.party(name, party)
    ciphertext, key = markers.text("ciphertext").encode(), markers.text("key")
    message_id = uuid4()
    markers.texts["message id"] = str(message_id)
    markers.texts["message id in hex"] = message_id.hex
    relay.http.headers["X-Forwarded-For"] = ADDRESS
    relay.http.headers["User-Agent"] = markers.text("agent")
    relay.http.headers["X-Request-ID"] = markers.text("request id with a blank") + " x"
    answers = []

    def submit(content: bytes = ciphertext, **options: object) -> httpx.Response:
        answer = relay.submit(sender, recipient, content, message_id=message_id, **options)  # type: ignore[arg-type]
        answers.append(answer)
        return answer

    assert submit(key=key).status_code == 201
    submit(key=key)
    submit(markers.text("conflict").encode())
    submit(markers.text("reused").encode(), key=key)
    submit(ttl_seconds=1)
    submit(protocol_version=9)
    submit(unknown_member=markers.text("member's value"))
    assert relay.acknowledge(recipient, [message_id], key=markers.text("ack key")).is_success
    relay.acknowledge(recipient, [uuid4()])
    assert relay.pull(recipient).is_success
    answers += _refused_by_the_face(relay, markers, sender)
    answers += _failed_by_postgresql(relay, markers, sender)
    path = f"/v1/devices/{recipient.id}"
    relay.call("PUT", path, provisioner, json={"token_sha256": "ab" * 32})
    relay.call("DELETE", path, provisioner)
    submit()
    return [answer for answer in answers if answer.status_code >= 400]


def _refused_by_the_face(
    relay: RelayClient, markers: Markers, sender: Party
) -> list[httpx.Response]:
    marker = markers.text("face")
    json_type = {"Content-Type": "application/json", "Authorization": f"Bearer {sender.token}"}
    url = "/v1/envelopes"
    http = relay.http
    return [
        http.post(url, content=f'{{"{marker}": NaN}}'.encode(), headers=json_type),
        http.post(url, content=marker.encode(), headers=json_type),
        http.post(url, json={"message_id": marker, "ciphertext": marker}, headers=json_type),
        http.get(url, params={"cursor": marker}, headers=json_type),
        http.get(url, params={"limit": marker}, headers=json_type),
        http.get(url, headers={"Authorization": f"Bearer {marker}"}),
        http.get(f"/v1/{marker}"),
        http.request("BREW", f"/{marker}"),
        http.get("/readyz", headers={"Host": f"{marker}.example"}),
        http.put(f"/v1/devices/{marker}", json={}, headers=json_type),
    ]


def _failed_by_postgresql(
    relay: RelayClient, markers: Markers, sender: Party
) -> list[httpx.Response]:
    """A row that violates a constraint, and a lock timeout."""
    content, recipient = markers.text("failing row"), make_device()
    markers.party("unlucky", recipient)
    run(
        "ALTER TABLE relay_body ADD CONSTRAINT tests_short "
        "CHECK (octet_length(ciphertext) < 50) NOT VALID"
    )
    try:
        failed = relay.submit(sender, recipient, content.encode() * 3)
    finally:
        run("ALTER TABLE relay_body DROP CONSTRAINT tests_short")
    assert failed.status_code == 500
    with usage_row_locked(recipient.id):
        waited = threading.Thread(target=relay.submit, args=(sender, recipient, content.encode()))
        waited.start()
        late = relay.submit(sender, recipient, content.encode())
        waited.join()
    assert late.status_code == 503
    return [failed, late]


def test_no_marker_is_in_a_log_a_metric_or_an_error(process: RelayProcess) -> None:
    markers = Markers()
    postgres_log = _postgres_log()
    before = postgres_log.stat().st_size if postgres_log else 0
    with RelayClient(process.url) as relay:
        set_limits(pending_count=10)
        refused = _send_everything(relay, markers)
        metrics = httpx.get(f"{process.url}/metrics").text
    process.stop()
    log = process.log.read_text("utf-8")

    assert markers.found_in(log) == []
    assert markers.found_in(metrics) == []
    statuses = {answer.status_code for answer in refused}
    assert statuses >= {400, 401, 404, 409, 422, 500, 503}
    for answer in refused:
        assert markers.found_in(answer.text) == []
        assert markers.found_in(str(dict(answer.headers))) == []
    # It did log: every request, and nothing but JSON from the application.
    events = [json.loads(line)["event"] for line in log.splitlines() if line.startswith("{")]
    assert sum(event in ("request.handled", "request.served") for event in events) >= 25
    assert {"request.failed", "storage.unavailable", "submit.conflict"} <= set(events)
    if postgres_log is not None:
        with postgres_log.open("rb") as stream:
            stream.seek(before)
            said = stream.read().decode("utf-8", "replace")
        assert "tests_short" in said  # PostgreSQL did report the failing row's constraint
        assert markers.found_in(said) == []


def test_what_postgresql_shows_of_a_running_statement_holds_no_value(
    process: RelayProcess,
) -> None:
    """Parameters travel apart from the statement, so that no view and no log can quote them."""
    markers, recipient, message_id = Markers(), make_device(), uuid4()
    ciphertext = markers.text("ciphertext").encode()
    markers.party("recipient", recipient)
    markers.texts["message id"] = str(message_id)
    sender = make_device()
    with RelayClient(process.url) as relay, connect() as outside:
        outside.execute("LOCK TABLE relay_body IN SHARE MODE")
        submit = Background(
            lambda: relay.submit(sender, recipient, ciphertext, message_id=message_id)
        )
        waiting_for_a_lock(1)
        [(query,)] = run(
            "SELECT query FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        outside.rollback()
        assert submit.result().status_code == 201
    assert "relay_submit_at_once" in query
    assert markers.found_in(query) == []


def test_the_search_finds_a_marker_in_every_form() -> None:
    markers = Markers()
    marker = markers.text("thing").encode()
    assert markers.found_in(f"x{marker.decode()}x") == ["thing"]
    assert markers.found_in(f"\\x{marker.hex().upper()}") == ["thing in hex"]
    for offset in range(3):
        encoded = base64.b64encode(b"-" * offset + marker + b"---").decode()
        assert markers.found_in(encoded) == [f"thing in base64 +{offset}"]
    device = make_device()
    markers.party("device", device)
    assert markers.found_in(str(device.id).upper()) == ["device's id"]
    assert markers.found_in("nothing of the kind") == []
