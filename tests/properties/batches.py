"""Sending a batch, and reading what became of its entries."""

import time
from typing import Any

import httpx

from quotas.models import QueueUsage
from tests.api.helpers import moment, post
from tests.client import Party, RelayClient, new_key

BATCH = "/v1/envelopes/batch"
#: The default instance TTL, in seconds.
WEEK = 604_800


def send(
    relay: RelayClient, sender: Party, entries: list[Any], *, key: str | None = None
) -> httpx.Response:
    """`POST /v1/envelopes/batch`."""
    return post(relay, sender, {"envelopes": entries}, path=BATCH, key=key)


def send_surely(relay: RelayClient, sender: Party, entries: list[Any]) -> httpx.Response:
    """The same, sent again under its key for as long as a crowded queue answers 503."""
    key, deadline = new_key(), time.monotonic() + 30
    while True:
        answer = send(relay, sender, entries, key=key)
        if answer.status_code != 503:
            return answer
        assert time.monotonic() < deadline, "no final answer came"
        time.sleep(0.02)


def results(answer: httpx.Response, status: int = 200) -> list[dict[str, Any]]:
    """One result an entry, in plain JSON with no other member."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    document = answer.json()
    assert set(document) == {"results"}
    return list(document["results"])


def verdicts(answer: httpx.Response, status: int = 200) -> list[str]:
    """What became of each entry: its status, or the code it was rejected with."""
    return [
        each["error"]["code"] if "error" in each else each["status"]
        for each in results(answer, status)
    ]


def assert_stored(result: dict[str, Any], status: str, ttl: int = WEEK) -> None:
    """The whole result of an entry that is in its queue."""
    names = {"message_id", "recipient_device_id", "status"}
    assert set(result) == names | {"accepted_at", "expires_at", "ttl_seconds"}
    assert (result["status"], result["ttl_seconds"]) == (status, ttl)
    kept = moment(result["expires_at"]) - moment(result["accepted_at"])
    assert kept.total_seconds() == ttl


def assert_rejected(result: dict[str, Any], code: str) -> None:
    """The whole result of an entry that was rejected."""
    assert set(result) == {"message_id", "recipient_device_id", "status", "error"}
    assert result["status"] == "rejected"
    error = dict(result["error"])
    if code == "RECIPIENT_QUOTA_EXCEEDED":
        assert 30 <= error.pop("retry_after") <= 60
        assert error == {"code": code, "retryable": True}
    else:
        assert error == {"code": code, "retryable": False}


def usage_of(device: Party) -> tuple[int, int]:
    """(envelopes, bytes) as the usage row counts them."""
    row = QueueUsage.objects.get(device_id=device.id)
    return row.pending_count, row.pending_bytes
