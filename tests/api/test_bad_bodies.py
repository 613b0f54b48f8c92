"""Bodies that cannot be read, and bodies of other kinds (PROTOCOL section 1).

Whatever comes, the answer is right, no row changes, and the relay lives on.
"""

import json
from uuid import UUID

import pytest

from tests.api.helpers import (
    answered,
    assert_problem,
    envelope_for,
    exchange,
    nothing_happens,
    post,
    raw_head,
)
from tests.client import RelayClient, make_device, new_key

# --- Not the JSON of the protocol -------------------------------------------------------------

AS_TEXT = json.dumps(envelope_for(UUID("11111111-1111-4111-8111-111111111111")))
ENVELOPE = AS_TEXT.encode()


def _with(member: str) -> bytes:
    """The envelope with one member more, given as JSON text."""
    return (AS_TEXT[:-1] + ", " + member + "}").encode()


MALFORMED = {
    "no body": b"",
    "white space": b" \n\t",
    "a list": b"[" + ENVELOPE + b"]",
    "a string": b'"text"',
    "null": b"null",
    "a number": b"1",
    "a flag": b"true",
    "two documents": ENVELOPE + ENVELOPE,
    "something behind": ENVELOPE + b"x",
    "cut off": ENVELOPE[:-1],
    "a form": b"recipient_device_id=1&message_id=2",
    "single quotes": ENVELOPE.replace(b'"', b"'"),
    "a trailing comma": ENVELOPE[:-1] + b",}",
    "a comment": b"/* hello */" + ENVELOPE,
    "names without quotes": b"{a: 1}",
    "an invalid escape": b'{"a": "\\x41"}',
    "a raw newline in a string": b'{"a": "\n"}',
    "a raw NUL in a string": b'{"a": "\x00"}',
    "NUL behind": ENVELOPE + b"\x00",
    "NUL alone": b"\x00",
    "a byte order mark": b"\xef\xbb\xbf" + ENVELOPE,
    "UTF-16 with its mark": AS_TEXT.encode("utf-16"),
    "UTF-16 little-endian": AS_TEXT.encode("utf-16-le"),
    "UTF-16 big-endian": AS_TEXT.encode("utf-16-be"),
    "UTF-32": AS_TEXT.encode("utf-32"),
    "latin-1 text": b'{"a": "\xe9"}',
    "an overlong form": b'{"a": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "half a character": b'{"a": "\xe2\x82"}',
    "a member twice": _with('"ttl_seconds": 60, "ttl_seconds": 60'),
    "a needed member twice": _with('"protocol_version": 1'),
    "a member twice by escapes": _with('"message\\u005fid": "x"'),
    "a member twice, deeper": _with('"x": {"a": 1, "a": 1}'),
    "a member twice in a list": _with('"x": [[{"b": {"a": 1, "a": 2}}]]'),
    "NaN": _with('"ttl_seconds": NaN'),
    "Infinity": _with('"ttl_seconds": Infinity'),
    "-Infinity": _with('"ttl_seconds": -Infinity'),
    "NaN, deeper": _with('"x": [{"y": NaN}]'),
    "a leading zero": _with('"ttl_seconds": 060'),
    "a plus sign": _with('"ttl_seconds": +60'),
    "hexadecimal": _with('"ttl_seconds": 0x60'),
    "a bare point": _with('"ttl_seconds": 60.'),
    "100,000 open brackets": b"[" * 100_000,
    "100,000 open objects": b'{"a":' * 100_000,
    "100,000 brackets in a member": _with('"x": ' + "[" * 100_000 + "]" * 100_000),
    "random bytes": bytes(range(128, 256)) * 8,
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_body_that_is_no_strict_json_object_is_malformed(relay: RelayClient, kind: str) -> None:
    device = make_device()
    with nothing_happens(relay):
        for path in ("/v1/envelopes", "/v1/acks"):
            assert_problem(post(relay, device, MALFORMED[kind], path=path), "MALFORMED_REQUEST")


@pytest.mark.parametrize(
    "number",
    ["1e999", "-1e999", "1e400", "1" + "0" * 4_999, "-1" + "0" * 4_999, "1." + "1" * 9_999],
)
def test_an_absurd_number_is_a_bad_request(relay: RelayClient, number: str) -> None:
    device = make_device()
    body = json.dumps(envelope_for(device))[:-1].encode() + f', "ttl_seconds": {number}}}'.encode()
    with nothing_happens(relay):
        answer = post(relay, device, body)
        assert answer.status_code == 400
        assert_problem(answer, answer.json()["code"])


def test_deep_nesting_that_can_be_read_is_a_field_of_the_wrong_type(relay: RelayClient) -> None:
    device = make_device()
    body = b'{"message_ids": ' + b"[" * 100 + b"]" * 100 + b"}"
    with nothing_happens(relay):
        answer = post(relay, device, body, path="/v1/acks")
        assert_problem(answer, "VALIDATION_FAILED", pointers={"/message_ids/0"})


# --- Kinds of content -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        *("application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8"),
        *(
            'application/json; charset="utf-8"',
            "Application/JSON",
            "APPLICATION/JSON;CHARSET=utf-8",
        ),
    ],
)
def test_json_in_utf8_is_taken_however_it_is_named(relay: RelayClient, kind: str) -> None:
    device = make_device()
    answer = post(relay, device, envelope_for(device), headers={"Content-Type": kind})
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "kind",
    [
        *("text/plain", "text/json", "application/jsonp", "application/problem+json", "*/*"),
        *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "json", ""),
        *("application/json; charset=latin-1", "application/json; charset=utf-16", "x" * 1000),
        *("application/json; charset=", "application/octet-stream", "application/xml", ";;;"),
    ],
)
def test_any_other_media_type_is_refused(relay: RelayClient, kind: str) -> None:
    device = make_device()
    with nothing_happens(relay):
        answer = post(relay, device, envelope_for(device), headers={"Content-Type": kind})
        assert_problem(answer, "UNSUPPORTED_MEDIA_TYPE")


def test_a_body_without_a_content_type_is_refused(relay: RelayClient) -> None:
    device = make_device()
    body = json.dumps(envelope_for(device)).encode()
    with nothing_happens(relay):
        key = f"Idempotency-Key: {new_key()}"
        head = raw_head(device, key, f"Content-Length: {len(body)}")
        assert_problem(answered(exchange(relay.url, head, body)), "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("encoding", ["gzip", "identity", "deflate", "br", "gzip, gzip", "nothing"])
def test_any_content_encoding_is_refused(relay: RelayClient, encoding: str) -> None:
    device = make_device()
    with nothing_happens(relay):
        for body in (json.dumps(envelope_for(device)).encode(), b"\x1f\x8b\x08\x00"):
            answer = post(relay, device, body, headers={"Content-Encoding": encoding})
            assert_problem(answer, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "The body is empty."),
        (b" \n", "The body is empty."),
        (b"\xff{}", "The body is not UTF-8."),
        (b'{"a": 1, "a": 2}', "A member of an object is there twice."),
        (b'{"a": NaN}', "NaN and Infinity are not JSON."),
        (b"{secret", "The body is not JSON."),
        (b"[" * 100_000, "There is more in it than any call has."),
        (b"[]", "The top level must be a JSON object."),
    ],
)
def test_a_body_that_cannot_be_read_is_told_apart_and_not_echoed(
    relay: RelayClient, body: bytes, detail: str
) -> None:
    answer = post(relay, make_device(), body)
    assert (answer.json()["code"], answer.json()["detail"]) == ("MALFORMED_REQUEST", detail)
