"""Reading a request: body, key, query and address (PROTOCOL section 1)."""

import re
from email.message import Message
from typing import Any

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest
from rest_framework.request import Request

from config.gate.intake import State, body_of
from config.kernel import strict_json
from config.kernel.problems import (
    FieldError,
    IdempotencyKeyInvalid,
    IdempotencyKeyMissing,
    MalformedRequest,
    NotAcceptable,
    RateLimited,
    RequestTooLarge,
    StorageUnavailable,
    UnsupportedMediaType,
    ValidationFailed,
)

_TOO_SLOW = "Bodies from this address are on their way and do not come."
_TOO_MANY = "Bodies of others are on their way and do not come."
_LONGEST_KEY = 255
_PRINTABLE = re.compile(r"[ -~]+")
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # an sf-string of RFC 8941
_ESCAPED = re.compile(r'\\(["\\])')
_ANY_JSON = {"*/*", "application/*", "application/json", "application/problem+json"}


def json_body(request: Request) -> dict[str, Any]:
    """The JSON object of the body.

    Raises UnsupportedMediaType, RequestTooLarge and MalformedRequest, and when other bodies are
    on their way and do not come: RateLimited if they are the same caller's, else
    StorageUnavailable.
    """
    content_type = Message()
    content_type["Content-Type"] = request.META.get("CONTENT_TYPE") or "text/plain"
    charset = content_type.get_param("charset", "utf-8")
    if content_type.get_content_type() != "application/json" or str(charset).lower() != "utf-8":
        raise UnsupportedMediaType
    if "HTTP_CONTENT_ENCODING" in request.META:
        raise UnsupportedMediaType
    return strict_json.loads_object(_raw_body(request))


def _raw_body(request: Request) -> bytes:
    """What came in, or what is wrong with it."""
    announced = request.META.get("CONTENT_LENGTH") or ""
    if announced and not announced.isdecimal():
        raise MalformedRequest
    body = body_of(request.META)
    match body.state:
        case State.WHOLE:
            return body.data
        case State.SHORT:
            raise MalformedRequest("The body broke off before its end.")
        case State.TOO_LARGE:
            raise RequestTooLarge
        case State.CROWDED_BY_CALLER:
            raise RateLimited(_TOO_SLOW)
        case State.CROWDED:
            raise StorageUnavailable(_TOO_MANY)


def check_accept(request: HttpRequest) -> None:
    """Raises NotAcceptable when the client takes no JSON."""
    accept = request.META.get("HTTP_ACCEPT", "").strip()
    if not accept:
        return
    for item in accept.split(","):
        media_type, *parameters = [part.strip().lower() for part in item.split(";")]
        refused = any(re.fullmatch(r"q=0(\.0{0,3})?", part) for part in parameters)
        if media_type in _ANY_JSON and not refused:
            return
    raise NotAcceptable


def check_query(request: HttpRequest, allowed: frozenset[str]) -> None:
    """Raises ValidationFailed for a query parameter that is unknown or there twice."""
    try:
        parameters = list(request.GET.lists())
    except SuspiciousOperation:  # more of them than Django cares to parse
        raise ValidationFailed("Too many query parameters.") from None
    errors = []
    for name, values in parameters:
        if name not in allowed:
            errors.append(FieldError(_pointer(name), "Unknown query parameter."))
        elif len(values) > 1:
            errors.append(FieldError(_pointer(name), "Must be there once."))
    if errors:
        raise ValidationFailed(errors=tuple(errors[:50]))


def _pointer(name: str) -> str:
    return "/" + name[:64].replace("~", "~0").replace("/", "~1")


def required_idempotency_key(request: HttpRequest) -> str:
    """The key of a call that needs one.

    Raises IdempotencyKeyMissing and IdempotencyKeyInvalid.
    """
    key = idempotency_key(request)
    if key is None:
        raise IdempotencyKeyMissing
    return key


def idempotency_key(request: HttpRequest) -> str | None:
    """The key, if there is one; the bare and the quoted form name the same.

    Raises IdempotencyKeyInvalid.
    """
    header = request.META.get("HTTP_IDEMPOTENCY_KEY")
    if header is None:
        return None
    key = header.strip(" \t")
    if key.startswith('"'):
        quoted = _QUOTED.fullmatch(key)
        if quoted is None:
            raise IdempotencyKeyInvalid
        key = _ESCAPED.sub(r"\1", quoted.group(1))
    if len(key) > _LONGEST_KEY or _PRINTABLE.fullmatch(key) is None:
        raise IdempotencyKeyInvalid
    return key
