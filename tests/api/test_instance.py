"""What an instance says of itself, and its documents (PROTOCOL sections 6 and 9)."""

import re

import pytest

from tests.api.helpers import CATALOGUE, set_limits, set_retention
from tests.client import RelayClient, make_device, make_provisioner

# --- GET /v1/instance -------------------------------------------------------------------------


def test_a_fresh_instance_says_what_the_protocol_gives_as_defaults(relay: RelayClient) -> None:
    document = relay.http.get("/v1/instance").json()
    statement, name = document.pop("statement"), document.pop("name")
    assert document == {
        "protocol_versions": [1],
        "ttl": {"minimum": 60, "default": 604_800, "maximum": 604_800},
        "limits": {"envelope_bytes": 65_536, "pending_count": 1_000, "pending_bytes": 67_108_864},
        "receipt_days": 8,
    }
    assert isinstance(name, str)
    assert name
    assert set(statement) == {"retention", "backups", "metadata"}
    assert all(isinstance(text, str) and len(text) > 40 for text in statement.values())


def test_the_statement_says_that_sizes_times_and_frequency_stay_visible(
    relay: RelayClient,
) -> None:
    text = relay.http.get("/v1/instance").json()["statement"]["metadata"].lower()
    for word in ("size", "time", "frequency"):
        assert word in text


def test_a_change_of_policy_is_in_the_document(relay: RelayClient) -> None:
    set_limits(
        envelope_bytes=1_024, pending_count=10, pending_bytes=1_048_576, protocol_versions=[1, 3]
    )
    set_retention(ttl_days=30, min_ttl_seconds=1, receipt_days=90)
    document = relay.http.get("/v1/instance").json()
    assert document["protocol_versions"] == [1, 3]
    assert document["ttl"] == {"minimum": 1, "default": 2_592_000, "maximum": 2_592_000}
    assert document["limits"] == {
        "envelope_bytes": 1_024,
        "pending_count": 10,
        "pending_bytes": 1_048_576,
    }
    assert document["receipt_days"] == 90


def test_everyone_gets_the_same_document(relay: RelayClient) -> None:
    answers = [
        relay.call("GET", "/v1/instance", caller)
        for caller in (None, make_device(), make_provisioner())
    ]
    assert len({answer.content for answer in answers}) == 1
    assert {answer.status_code for answer in answers} == {200}


# --- Documents --------------------------------------------------------------------------------

OPERATIONS = {
    "/v1/envelopes": {"get", "post"},
    "/v1/acks": {"post"},
    "/v1/devices/{device_id}": {"put", "delete"},
    "/v1/device": {"get"},
    "/v1/instance": {"get"},
}


@pytest.fixture(scope="module")
def schema(relay: RelayClient) -> dict:  # type: ignore[type-arg]
    answer = relay.http.get("/api/schema/", headers={"Accept": "application/vnd.oai.openapi+json"})
    assert answer.status_code == 200
    return dict(answer.json())


def test_the_schema_is_openapi_3_1_and_names_every_call(schema: dict) -> None:  # type: ignore[type-arg]
    assert schema["openapi"].startswith("3.1.")
    for path, methods in OPERATIONS.items():
        assert methods <= set(schema["paths"][path])


def test_the_schema_tells_the_submit_as_the_protocol_does(schema: dict) -> None:  # type: ignore[type-arg]
    submit = schema["paths"]["/v1/envelopes"]["post"]
    [key] = [each for each in submit["parameters"] if each["name"] == "Idempotency-Key"]
    assert (key["in"], key["required"]) == ("header", True)
    assert {"200", "201"} <= set(submit["responses"])
    reference = submit["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    body = schema["components"]["schemas"][reference.rsplit("/", 1)[1]]
    assert set(body["properties"]) == {
        *("recipient_device_id", "message_id", "protocol_version", "ciphertext", "ttl_seconds"),
    }
    assert "ttl_seconds" not in body["required"]
    assert len(body["required"]) == 4


def test_the_schema_is_served_to_anyone_and_as_yaml_too(relay: RelayClient) -> None:
    answer = relay.http.get("/api/schema/")
    assert answer.status_code == 200
    assert "openapi: 3.1" in answer.text


def test_the_docs_and_the_page_of_errors_load_nothing_from_elsewhere(relay: RelayClient) -> None:
    for path in ("/api/docs/", "/api/errors"):
        page = relay.http.get(path)
        assert page.status_code == 200
        sources = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page.text)
        assert not [source for source in sources if "//" in source]
        for source in sources:
            if source.startswith("/"):
                assert relay.http.get(source).status_code == 200, source
    assert "swagger" in relay.http.get("/api/docs/").text.lower()


def test_the_page_of_errors_is_up_to_the_catalogue(relay: RelayClient) -> None:
    text = relay.http.get("/api/errors").text
    assert set(re.findall(r"<code>([A-Z_]{8,})</code>", text)) == set(CATALOGUE)
