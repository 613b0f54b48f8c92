"""The statements of a batch: committed baselines, and none that grows with its entries.

What is listed is what runs inside the one transaction, in its order, as "verb table". A change
here is a change of the locks, the latency or the load of every batch: review it as one.
"""

import re
from itertools import count, islice
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext

from config.kernel.shards import shard_of_device
from quotas.models import QueueUsage
from tests import factories
from tests.api.helpers import envelope_for, set_limits
from tests.client import base64_of, make_device, new_key

SHARD = 5
_OPENING = ["BEGIN", "INSERT idempotency_record"]
_LOOK = [
    "SELECT set_config",
    "SELECT quotas_queueusage",
    "SELECT relay_now",
    "SELECT relay_envelope",
]
_STORE = [
    "UPDATE quotas_queueusage",
    "INSERT relay_envelope",
    "INSERT relay_body",
    "INSERT outbox_event",
]
_EXPIRE = ["WITH unnest", "UPDATE quotas_queueusage", "SELECT quotas_queueusage"]
_KEPT = ["UPDATE idempotency_record", "COMMIT"]
_FREED = ["DELETE idempotency_record", "COMMIT"]

ACCEPTED = [*_OPENING, *_LOOK, *_STORE, *_KEPT]
DUPLICATES = [*_OPENING, *_LOOK, *_KEPT]
CONFLICTS = [*_OPENING, *_LOOK, "INSERT outbox_event", *_FREED]
UNKNOWN = [*_OPENING, *_LOOK, *_FREED]
OUT_OF_POLICY = [*_OPENING, "SELECT relay_now", *_FREED]
AFTER_EXPIRY = [*_OPENING, *_LOOK, *_EXPIRE, *_STORE, *_KEPT]
REPLAY = [*_OPENING, "SELECT idempotency_record", "COMMIT"]

_COMMENT = re.compile(r"\s*--[^\n]*\n")
_TABLE = re.compile(r"\b(?:FROM|INTO|UPDATE)\s+\"?(?P<table>(?!SKIP\b)\w+)", re.IGNORECASE)


def _kind(statement: str) -> str:
    bare = _COMMENT.sub("", statement).strip()
    verb = bare.split()[0].upper()
    if verb in ("BEGIN", "COMMIT"):
        return verb
    table = _TABLE.search(bare)
    function = "set_config" if "set_config" in bare else "relay_now"
    return f"{verb} {table['table'] if table else function}"


def _queues(shard: int, number: int) -> list[UUID]:
    """Queues of new devices, all in one shard."""
    fresh = (device_id for _ in count() if shard_of_device(device_id := uuid4()) == shard)
    device_ids = list(islice(fresh, number))
    QueueUsage.objects.bulk_create(QueueUsage(shard=shard, device_id=each) for each in device_ids)
    return device_ids


def _headers() -> dict[str, str]:
    """A sender and a key that nobody used."""
    return {"Authorization": f"Bearer {make_device().token}", "Idempotency-Key": new_key()}


def _statements(entries: list[Any], *, status: int, headers: Any = None) -> list[str]:
    """What one batch runs inside its transaction, in this process."""
    headers = headers or _headers()
    with CaptureQueriesContext(connection) as captured:
        answer: HttpResponse = Client().post(
            "/v1/envelopes/batch",
            {"envelopes": entries},
            content_type="application/json",
            headers=headers,
        )
    assert answer.status_code == status, answer.content
    kinds = [_kind(query["sql"]) for query in captured.captured_queries]
    return kinds[kinds.index("BEGIN") :]  # before it: the token and the policies, when not cached


SOME = pytest.mark.parametrize("entries", [1, 2, 100])


@SOME
def test_accepted_for_many_devices_of_one_shard(entries: int) -> None:
    batch = [envelope_for(device) for device in _queues(SHARD, entries)]
    assert _statements(batch, status=200) == ACCEPTED


@SOME
def test_accepted_for_one_device(entries: int) -> None:
    [device] = _queues(SHARD, 1)
    batch = [envelope_for(device) for _ in range(entries)]
    assert _statements(batch, status=200) == ACCEPTED


@SOME
def test_duplicates(entries: int) -> None:
    batch = [envelope_for(device) for device in _queues(SHARD, entries)]
    _statements(batch, status=200)
    assert _statements(batch, status=200) == DUPLICATES


@SOME
def test_a_replay(entries: int) -> None:
    batch, headers = [envelope_for(each) for each in _queues(SHARD, entries)], _headers()
    _statements(batch, status=200, headers=headers)
    assert _statements(batch, status=200, headers=headers) == REPLAY


@SOME
def test_conflicts(entries: int) -> None:
    batch = [envelope_for(device) for device in _queues(SHARD, entries)]
    _statements(batch, status=200)
    other = [{**entry, "ciphertext": base64_of(b"other")} for entry in batch]
    assert _statements(other, status=422) == CONFLICTS


@SOME
def test_unknown_recipients(entries: int) -> None:
    ids = (each for _ in count() if shard_of_device(each := uuid4()) == SHARD)
    batch = [envelope_for(each) for each in islice(ids, entries)]
    assert _statements(batch, status=422) == UNKNOWN


@SOME
def test_out_of_policy(entries: int) -> None:
    batch = [envelope_for(each, ttl_seconds=0) for each in _queues(SHARD, entries)]
    assert _statements(batch, status=422) == OUT_OF_POLICY


@pytest.mark.parametrize("entries", [1, 2, 20])
def test_queues_that_look_full_and_have_something_due(entries: int) -> None:
    set_limits(pending_count=10)
    devices = _queues(SHARD, entries)
    for device in devices:
        for _ in range(10):
            factories.store_due(device)
    batch = [envelope_for(device) for device in devices]
    assert _statements(batch, status=200) == AFTER_EXPIRY


@pytest.mark.parametrize("shards", [1, 4, 16])
def test_each_shard_costs_six_statements(shards: int) -> None:
    batch = [envelope_for(*_queues(shard, 1)) for shard in range(shards)]
    assert len(_statements(batch, status=200)) == 6 + 6 * shards
