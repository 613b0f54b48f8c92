"""Holds every answer that a test sees against the OpenAPI schema: the two may not disagree."""

import re
import threading
from functools import cache
from typing import Any

import httpx
from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator

PROBLEM = "application/problem+json"


_BUILDING = threading.Lock()  # the generator has state of its own, and tests have threads


def schema() -> dict[str, Any]:
    """The schema, as the relay serves it."""
    with _BUILDING:
        return _schema()


@cache
def _schema() -> dict[str, Any]:
    return dict(SchemaGenerator().get_schema(request=None, public=True))


def check(response: httpx.Response) -> None:
    """Assert that the schema knows this status, media type, error code and shape."""
    found = _operation(response.request.method, response.request.url.path)
    if found is None:
        return
    name, operation = found
    known = operation["responses"]
    assert str(response.status_code) in known, f"{name}: status {response.status_code} unknown"
    if "content" not in known[str(response.status_code)]:
        assert response.content == b"", f"{name}: {response.status_code} has a body"
        return
    media_type = response.headers.get("Content-Type", "").partition(";")[0]
    content = known[str(response.status_code)]["content"]
    assert media_type in content, f"{name}: {response.status_code} {media_type} unknown"
    _validator(content[media_type]["schema"]["$ref"]).validate(response.json())
    if media_type == PROBLEM:
        codes = {each["value"]["code"] for each in content[media_type]["examples"].values()}
        assert response.json()["code"] in codes, f"{name}: {response.json()['code']} unknown"


def _operation(method: str, path: str) -> tuple[str, dict[str, Any]] | None:
    for template, operations in schema()["paths"].items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", template)
        if re.fullmatch(pattern, path) and method.lower() in operations:
            return f"{method} {template}", operations[method.lower()]
    return None


@cache
def _validator(reference: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": reference, "components": schema()["components"]})
