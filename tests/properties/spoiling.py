"""Ways to spoil a request: its body, headers, cursor, query, path and method."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.properties.wire import Raw

Spoil = Callable[[Raw], Raw]

#: In place of a JSON value; what stands here need not be JSON.
ODD_VALUES = [
    *(b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-0", b"0.0", b"1E1", b"01", b"0x10", b"+1"),
    *(b"null", b"true", b"[]", b"{}", b'""', b'" "', b"''", b"undefined", b"1 2", b"\x00", b""),
    *(b'"\\ud800"', b'"\\u0000"', b'"\\x41"', b'"\x80"', b'"\xed\xa0\x80"', b'"\t"', b'"open'),
    *(b'{"a":1,"a":2}', b'{"":{}}', b'["a",]', b"[" * 400 + b"]" * 400, b"[" * 100_000),
    *(b"9" * 4300, b"9" * 4301, b"-" + b"9" * 400, b'"' + b"A" * 100_000 + b'"'),
    *(b'"AAA"', b'"AA=="', b'"A==="', b'"AAA\\n="', b'"_-8="', b'"\\uff21AAA"', b'"AAAA\\u0000"'),
    *(b'"00000000-0000-4000-8000-00000000000\\u0661"', b'"{c0ffee00-5b1d-4c2a-8a8e-2f6b7d9e1a01}"'),
]
#: In place of a whole body.
ODD_BODIES = [
    *(b"", b" ", b"null", b"[]", b'""', b"0", b"{}", b"{", b"}", b"\x00", b"\xff\xfe{\x00}\x00"),
    *(b"\xef\xbb\xbf{}", b"{}{}", b"{} x", b'{"":null}', b"\x1f\x8b\x08\x00", b"a=1&b=2"),
    *(b'{"a":' * 20_000, b"[" * 200_000, b'{"message_ids":' + b"[" * 200_000),
]
_TOKEN = b"Bearer rld1.6f1c2a54-0f0c-4d2e-9b5d-3d1f0e5a7c11." + b"A" * 43
ODD_HEADERS: dict[bytes, list[bytes]] = {
    b"Authorization": [
        *(b"", b"Bearer", b"Bearer ", b"Basic YTpi", b"Bearer a.b.c", _TOKEN, _TOKEN + b"="),
        *(b"bearer \xff", b"Bearer " + b"." * 5_000, b"Bearer\tx", b"Digest a=b, c=d"),
    ],
    b"Idempotency-Key": [
        *(b"", b" ", b'"', b'""', b'"open', b'"a"b', b'"\\x"', b'"\\""', b"\xe9", b"a" * 256),
        *(b"a\tb", b'"' + b"a" * 256 + b'"', b"'a'", b":YQ==:", b"a, b"),
    ],
    b"Content-Type": [
        *(b"", b"text/plain", b"application/json; charset=utf-16", b"application/json;", b";"),
        *(b"application/json; charset", b'application/json; charset="utf-8', b"APPLICATION/JSON"),
        *(b"application/json; charset*=utf-8''utf-8", b"multipart/form-data; boundary=x", b"/"),
        *(b"application/x-www-form-urlencoded", b"application/json\xff", b"application/json, a/b"),
        *(b"application/json; a=b; charset=utf-8; charset=latin-1", b"application/vnd.api+json"),
    ],
    b"Content-Encoding": [b"", b"gzip", b"identity", b"br, gzip", b"\xff"],
    b"Accept": [
        *(b"", b"*", b"*/*;q=0", b"text/html", b"application/json;q=0.0", b";;;", b",,,", b"\xff"),
        *(b"application/json;q=abc", b"application/problem+json", b"a" * 5_000),
    ],
    b"X-Request-ID": [b"", b"a" * 64, b"a" * 65, b"\xe9", b'"><script>', b"a b", b"%0d%0a"],
    b"X-Forwarded-For": [b"", b"1.2.3.4", b"::1, \xff", b"," * 1_000],
    b"X-HTTP-Method-Override": [b"DELETE", b"PATCH"],
    b"Cookie": [b"sessionid=x; csrftoken=y", b"\xff", b"a=" + b"b" * 4_000],
    b"Range": [b"bytes=0-1"],
    b"If-None-Match": [b"*"],
    b"Expect": [b"100-continue", b"200-ok", b""],
}
#: These decide what is a request at all; the server below the relay may refuse by itself.
WIRE_HEADERS: dict[bytes, list[bytes]] = {
    b"Host": [b"", b"evil.example", b"\xff", b"127.0.0.1:99999", b"[::1", b"a b", b"127.0.0.1/x"],
    b"Content-Length": [
        *(b"0", b"1", b"-1", b"+1", b"abc", b"", b"1, 1", b"0x10", b"1e3", b"99999999999999999999"),
        *(b"8388608", b"8388609", b"\xb2", b"00002"),
    ],
    b"Transfer-Encoding": [b"chunked", b"gzip", b"gzip, chunked", b"identity", b"chunked, chunked"],
    b"Connection": [b"close", b"upgrade", b"keep-alive, te", b"\xff"],
    b"Upgrade": [b"h2c", b"websocket"],
    b"Bad Name": [b"x"],
    b"X-Control": [b"\x00", b"\x7f", b"\x01", b"a" * 500_000],
}
ODD_TARGETS = [
    *(b"/", b"//", b"/v1", b"/v1/", b"/v1/envelopes/", b"/v1//envelopes", b"/V1/ENVELOPES"),
    *(b"/v1/./envelopes", b"/v1/x/../envelopes", b"/v1/%2e%2e/admin/", b"/v1/envelopes%00"),
    *(b"/v1/envelopes%2Fbatch", b"/v1/envelopes;a=b", b"/v1/envelopes%ff", b"/%", b"/%zz"),
    *(b"/v1/devices/", b"/v1/devices/x", b"/v1/devices/%00", b"/v1/devices/%ff%fe", b"/%00"),
    *(b"/v1/devices/urn:uuid:x", b"/v1/devices/" + b"a" * 5_000, b"/v1/devices/a/b", b"/v1/no"),
    *(b"/v1/device?a=1", b"/v1/device?limit=1", b"/v1/device?%ff=%fe", b"/v1/devices/."),
    *(b"/v1/device?" + b"a&" * 900, b"/v1/device?%00=1", b"/v1/device?a" + b"[]" * 500),
    *(b"/v1/instance?", b"/v1/instance?x", b"/" + b"a" * 20_000, b"/v1/envelopes?limit=1;limit=2"),
]
#: Targets that are hardly HTTP.
WIRE_TARGETS = [b"*", b"", b"v1/device", b"http://evil.example/v1/device", b"/v1/\xff", b"/ /"]
LIMITS = [b"0", b"101", b"-1", b"1.0", b"", b"\xd9\xa1", b"%D9%A1", b"1e1", b"+1", b"1&limit=2"]
METHODS = [b"PATCH", b"OPTIONS", b"TRACE", b"HEAD", b"QUERY", b"post", b"X" * 100, b"GETT"]
WIRE_METHODS = [b"", b"G\xe9T", b"A B", b"CONNECT", b"PRI"]


def _at_random(change: Callable[[bytes, int, int, bytes], bytes]) -> st.SearchStrategy[Spoil]:
    """Change the body's bytes somewhere."""

    def spoil(position: float, length: int, filling: bytes) -> Spoil:
        def apply(raw: Raw) -> Raw:
            at = int(position * len(raw.body))
            body = change(raw.body, at, length, filling)
            return raw.spoil(f"body at {at}: {length} {filling!r}", body=body)

        return apply

    return st.builds(
        spoil, st.floats(0, 1, exclude_max=True), st.integers(1, 40), st.binary(max_size=8)
    )


def _paths(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a document are."""
    inner = document.items() if isinstance(document, dict) else []
    inner = enumerate(document) if isinstance(document, list) else inner
    return [at, *(path for key, value in inner for path in _paths(value, (*at, key)))]


def _value(which: float, odd: bytes) -> Spoil:
    """Put something odd in place of one value."""
    marker = "\x01here\x01"

    def apply(raw: Raw) -> Raw:
        try:
            document = json.loads(raw.body)
        except (ValueError, RecursionError):
            return raw
        paths = _paths(document)[1:]
        if not paths:
            return raw
        *above, last = paths[int(which * len(paths))]
        holder = document
        for key in above:
            holder = holder[key]
        holder[last] = marker
        body = json.dumps(document).encode().replace(json.dumps(marker).encode(), odd)
        return raw.spoil(f"value at {[*above, last]}: {odd!r:.60}", body=body)

    return apply


def _member(name: str, value: bytes) -> Spoil:
    """One member more, maybe one that is there already."""

    def apply(raw: Raw) -> Raw:
        if not raw.body.startswith(b"{"):
            return raw
        more = b"{" + json.dumps(name).encode() + b":" + value + b","
        return raw.spoil(f"member {name!r:.40}", body=more + raw.body[1:])

    return apply


def _header(table: dict[bytes, list[bytes]], *, is_http: bool) -> st.SearchStrategy[Spoil]:
    """One header without a value, with an odd one, or with two."""

    def put(name: bytes, values: tuple[bytes, ...]) -> Spoil:
        return lambda raw: replace(raw.with_header(name, *values), is_http=raw.is_http and is_http)

    def choose(name: bytes) -> st.SearchStrategy[Spoil]:
        one = st.sampled_from(table[name])
        values = st.one_of(st.tuples(one), st.just(()), st.tuples(one, one))
        return values.map(lambda chosen: put(name, chosen))

    return st.sampled_from(sorted(table)).flatmap(choose)


def _target(targets: list[bytes], *, is_http: bool) -> st.SearchStrategy[Spoil]:
    return st.sampled_from(targets).map(
        lambda target: (
            lambda raw: raw.spoil(
                f"target {target!r:.60}", target=target, is_http=raw.is_http and is_http
            )
        )
    )


def _method(methods: list[bytes], *, is_http: bool) -> st.SearchStrategy[Spoil]:
    return st.sampled_from(methods).map(
        lambda method: (
            lambda raw: raw.spoil(
                f"method {method!r:.20}", method=method, is_http=raw.is_http and is_http
            )
        )
    )


def _cursor(position: float, filling: bytes) -> Spoil:
    """Change a character of the cursor, or put something else in its place."""

    def apply(raw: Raw) -> Raw:
        head, found, cursor = raw.target.partition(b"cursor=")
        if not found:
            return raw
        at = int(position * len(cursor))
        changed = cursor[:at] + filling + cursor[at + 1 :] if position else filling
        return raw.spoil(f"cursor {changed!r:.60}", target=head + found + changed)

    return apply


def _limit(value: bytes) -> Spoil:
    def apply(raw: Raw) -> Raw:
        mark = b"&" if b"?" in raw.target else b"?"
        return raw.spoil(f"limit {value!r}", target=raw.target + mark + b"limit=" + value)

    return apply


_URL_TEXT = st.text("ABCabc012-_=%.~", min_size=1, max_size=4).map(str.encode)

BODIES: st.SearchStrategy[Spoil] = st.one_of(
    _at_random(lambda body, at, length, filling: body[:at] + filling + body[at:]),
    _at_random(lambda body, at, length, filling: body[:at] + body[at + length :]),
    _at_random(lambda body, at, length, filling: body[:at] + filling + body[at + len(filling) :]),
    _at_random(lambda body, at, length, filling: body[:at]),
    st.builds(_value, st.floats(0, 1, exclude_max=True), st.sampled_from(ODD_VALUES)),
    st.builds(_value, st.floats(0, 1, exclude_max=True), st.sampled_from(ODD_VALUES)),
    st.builds(
        _member,
        st.sampled_from(["ttl_seconds", "message_id", "envelopes", "message_ids", "", "é", "\0"]),
        st.sampled_from(ODD_VALUES),
    ),
    st.sampled_from(ODD_BODIES).map(lambda body: lambda raw: raw.spoil("body", body=body)),
)
HEADERS = st.one_of(_header(ODD_HEADERS, is_http=True), _header(WIRE_HEADERS, is_http=False))
TARGETS = st.one_of(
    _target(ODD_TARGETS, is_http=True),
    _target(WIRE_TARGETS, is_http=False),
    st.builds(_cursor, st.floats(0, 1, exclude_max=True), _URL_TEXT),
    st.builds(_limit, st.sampled_from(LIMITS)),
)
METHOD = st.one_of(_method(METHODS, is_http=True), _method(WIRE_METHODS, is_http=False))
