"""The served schema as Schemathesis reads it: its links, its callers, and what it cannot say."""

import copy
import json
import re
from typing import Any

import httpx
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests import contract
from tests.client import new_key

_READ_ON = {"query.cursor": "$response.body#/next_cursor"}
_SAME_BODY = {"requestBody": "$request.body", "x-schemathesis": {"merge_body": False}}

#: How one call leads to the next: device → submit → pull → acknowledge, and back again.
LINKS: dict[str, dict[str, dict[str, Any]]] = {
    "device_put": {
        "submit to it": {
            "operationId": "submit",
            "requestBody": {"recipient_device_id": "$response.body#/device_id"},
        },
        "rotate its credential": {
            "operationId": "device_put",
            "parameters": {"device_id": "$response.body#/device_id"},
        },
        "disable it": {
            "operationId": "device_disable",
            "parameters": {"device_id": "$response.body#/device_id"},
        },
    },
    "submit": {
        "pull it": {"operationId": "pull"},
        "acknowledge it": {
            "operationId": "acknowledge",
            "requestBody": {"message_ids": ["$response.body#/message_id"]},
        },
        "submit it again": {"operationId": "submit", **_SAME_BODY},
        "submit it in a batch": {
            "operationId": "submit_batch",
            "requestBody": {"envelopes": ["$request.body"]},
        },
    },
    "submit_batch": {
        "pull them": {"operationId": "pull"},
        "acknowledge the first": {
            "operationId": "acknowledge",
            "requestBody": {"message_ids": ["$response.body#/results/0/message_id"]},
        },
    },
    "pull": {
        "pull on": {"operationId": "pull", "parameters": _READ_ON},
        "acknowledge the oldest": {
            "operationId": "acknowledge",
            "requestBody": {"message_ids": ["$response.body#/envelopes/0/message_id"]},
        },
    },
    "acknowledge": {
        "acknowledge again": {"operationId": "acknowledge", **_SAME_BODY},
        "look at the queue": {"operationId": "device"},
    },
}

#: Refusals of what is in shape: they depend on policies, on what is stored, and on secrets.
BEYOND_SHAPE = {
    "CURSOR_INVALID",
    "DEVICE_DISABLED",
    "ENVELOPE_TOO_LARGE",
    "IDEMPOTENCY_KEY_REUSED",
    "MESSAGE_ID_CONFLICT",
    "NOT_FOUND",
    "PROTOCOL_VERSION_UNSUPPORTED",
    "RECIPIENT_QUOTA_EXCEEDED",
    "RECIPIENT_UNKNOWN",
    "TTL_OUT_OF_RANGE",
}


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for path in document["paths"].values() for each in path.values()]


def linked() -> dict[str, Any]:
    """The schema with its links."""
    document = copy.deepcopy(contract.schema())
    for operation in _operations(document):
        for status, answer in operation["responses"].items():
            if status.startswith("2") and operation["operationId"] in LINKS:
                answer["links"] = copy.deepcopy(LINKS[operation["operationId"]])
    return document


def request_objects(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The schemas of what is sent, by name, nested ones included."""
    schemas = document["components"]["schemas"]
    found: dict[str, dict[str, Any]] = {}
    wanted = [operation.get("requestBody", {}) for operation in _operations(document)]
    while wanted:
        for name in re.findall(r"#/components/schemas/(\w+)", json.dumps(wanted.pop())):
            if name not in found:
                found[name] = schemas[name]
                wanted.append(schemas[name])
    return found


#: Chains follow the links above, none that Schemathesis infers from names, and what they send is
#: in shape: a link puts its body in place of a malformed one, which then is malformed no more.
_CHAINS = {"inference": {"algorithms": []}, "generation": {"mode": "positive"}}
SCHEMA = schemathesis.openapi.from_dict(
    linked(), config=schemathesis.Config.from_dict({"phases": {"stateful": _CHAINS}})
)


def operation_of(case: schemathesis.Case) -> str:
    """The operationId."""
    return str(case.operation.definition.raw["operationId"])


def is_positive(case: schemathesis.Case) -> bool:
    """Whether the case was made to be in shape."""
    return case.meta is not None and case.meta.generation.mode.is_positive


def freshen(case: schemathesis.Case) -> None:
    """A key of its own: simple examples all have the same one, and would replay each other.

    And whole numbers as the protocol writes them: for JSON Schema 7.0 is an integer too.
    """
    if is_positive(case):
        case.body = _whole(case.body)
        if "Idempotency-Key" in (case.headers or {}):
            case.headers["Idempotency-Key"] = new_key()


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plain(response: schemathesis.Response) -> httpx.Response:
    request = httpx.Request(str(response.request.method), str(response.request.url))
    headers = [(name, value) for name, values in response.headers.items() for value in values]
    return httpx.Response(
        response.status_code, headers=headers, content=response.content, request=request
    )


def agrees_with_the_schema(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """The tests' own check: it also knows which codes may come with which status."""
    contract.check(_plain(response))
    assert response.headers["x-request-id"]


def is_refused_for_what_no_shape_tells(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """What is in shape is accepted, or refused for a reason beyond shape."""
    if response.status_code >= 400:
        document = response.json()
        every_entry_rejected = operation_of(case) == "submit_batch" and "results" in document
        if every_entry_rejected or document.get("code") in BEYOND_SHAPE:
            return
    positive_data_acceptance(ctx, response, case)


#: Instead of Schemathesis's own of that purpose, which goes by status alone.
INSTEAD = {
    "excluded_checks": [positive_data_acceptance],
    "additional_checks": [agrees_with_the_schema, is_refused_for_what_no_shape_tells],
}
