"""Whatever bytes come, the relay answers with a documented problem, soon, and changes nothing.

Whole requests are spoilt in one to three places and sent over sockets of our own. What is no
HTTP any more may be refused by the server below the relay, without a problem document.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests import contract
from tests.api.helpers import CATALOGUE, assert_problem, envelope_for, snapshot
from tests.client import Party, RelayClient, make_device, make_provisioner, new_key
from tests.properties.profiles import examples, fuse
from tests.properties.spoiling import BODIES, HEADERS, METHOD, TARGETS, Spoil
from tests.properties.wire import Raw, send

LOG = logging.getLogger(__name__)
SECRET = {"token_sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}
#: What the server below the relay says to bytes that are no request, and says with no body.
BELOW = {400, 414, 431}
#: Drawn in two steps, or the many ways to spoil a body would crowd out the others.
SPOILS = st.sampled_from([BODIES, BODIES, HEADERS, HEADERS, TARGETS, METHOD]).flatmap(
    lambda some: some
)
ACCEPTED = {"200", "201", "202", "204"}
#: What any run comes across.
OFTEN = {
    *("200", "201", "refused below", "MALFORMED_REQUEST", "VALIDATION_FAILED", "NOT_FOUND"),
    *("UNAUTHENTICATED", "METHOD_NOT_ALLOWED", "UNSUPPORTED_MEDIA_TYPE", "CURSOR_INVALID"),
}


@dataclass(frozen=True)
class Cast:
    """Who takes part in a request."""

    device: Party
    provisioner: Party
    cursor: str

    def request(self, method: str, target: str, *, by: Party | None, document: Any = None) -> Raw:
        """A sound request."""
        headers = [(b"Host", b"127.0.0.1"), (b"Idempotency-Key", new_key().encode())]
        if by is not None:
            headers.append((b"Authorization", f"Bearer {by.token}".encode()))
        if document is None:
            return Raw(method.encode(), target.encode(), tuple(headers))
        headers.append((b"Content-Type", b"application/json"))
        body = json.dumps(document).encode()
        return Raw(method.encode(), target.encode(), tuple(headers), body)

    def pull(self) -> Raw:
        """A page behind the cursor."""
        return self.request("GET", f"/v1/envelopes?cursor={self.cursor}", by=self.device)

    def submit(self) -> Raw:
        """One envelope for the device."""
        entry = envelope_for(self.device, ttl_seconds=3_600)
        return self.request("POST", "/v1/envelopes", by=self.device, document=entry)

    def batch(self) -> Raw:
        """Three for the device."""
        entries = {"envelopes": [envelope_for(self.device) for _ in range(3)]}
        return self.request("POST", "/v1/envelopes/batch", by=self.provisioner, document=entries)

    def acknowledge(self) -> Raw:
        """Two ids that nobody knows."""
        ids = {"message_ids": [envelope_for(self.device)["message_id"] for _ in range(2)]}
        return self.request("POST", "/v1/acks", by=self.device, document=ids)

    def rotate(self) -> Raw:
        """A credential for a device that is not there yet."""
        target = f"/v1/devices/{envelope_for(self.device)['message_id']}"
        return self.request("PUT", target, by=self.provisioner, document=SECRET)

    def disable(self) -> Raw:
        """A device that is not there."""
        target = f"/v1/devices/{envelope_for(self.device)['message_id']}"
        return self.request("DELETE", target, by=self.provisioner)

    def look(self) -> Raw:
        """The device at itself."""
        return self.request("GET", "/v1/device", by=self.device)

    def ask(self) -> Raw:
        """Anyone about the instance."""
        return self.request("GET", "/v1/instance", by=None)


CALLS: list[Callable[[Cast], Raw]] = [
    *(Cast.submit, Cast.submit, Cast.batch, Cast.batch, Cast.acknowledge, Cast.pull),
    *(Cast.rotate, Cast.disable, Cast.look, Cast.ask),
]


@pytest.fixture
def cast(relay: RelayClient) -> Cast:
    """A device with one envelope in its queue, and the cursor behind that."""
    device = make_device()
    relay.submit(device, device).raise_for_status()
    cursor = relay.pull(device).json()["next_cursor"]
    return Cast(device, make_provisioner(), cursor)


def _judge(raw: Raw, answer: httpx.Response | None) -> str:
    """Assert that the answer is one that may be given; its code, status or silence."""
    if answer is None or "x-request-id" not in answer.headers:
        assert not raw.is_http, "a request was not answered by the relay"
        assert answer is None or (answer.status_code, answer.content) in {(s, b"") for s in BELOW}
        return "refused below" if answer else "closed"
    assert answer.status_code < 500, answer.text
    answer.request = httpx.Request(raw.method.decode("latin-1"), "http://relay" + _path(raw))
    if answer.status_code < 400:
        contract.check(answer)
        return str(answer.status_code)
    if raw.method == b"HEAD":
        return "HEAD"
    document = answer.json()
    if answer.status_code == 422 and set(document) == {"results"}:
        contract.check(answer)
        return "every entry rejected"
    code = str(document["code"])
    assert code in CATALOGUE
    assert_problem(answer, code)
    if code != "METHOD_NOT_ALLOWED":
        contract.check(answer)
    return code


def _path(raw: Raw) -> str:
    """The path, where it is one that a template of the schema may match as it is."""
    path = raw.target.partition(b"?")[0].decode("latin-1")
    return path if re.fullmatch(r"/v1/[\w/-]+", path, re.ASCII) else "/other"


@fuse
def test_spoilt_requests_get_a_documented_problem_and_change_nothing(
    relay: RelayClient, cast: Cast
) -> None:
    seen: Counter[str] = Counter()

    @examples(1_500)
    @given(call=st.sampled_from(CALLS), spoils=st.lists(SPOILS, max_size=3))
    def judge(call: Callable[[Cast], Raw], spoils: list[Spoil]) -> None:
        raw = call(cast)
        for spoil in spoils:
            raw = spoil(raw)
        note(f"{raw.method!r} {raw.target!r:.100} {raw.spoilt}")
        before = snapshot()
        verdict = _judge(raw, send(relay.url, raw))
        seen[verdict] += 1
        if verdict not in ACCEPTED:
            after = snapshot()
            assert {name for name in after if after[name] != before[name]} == set()

    judge()
    LOG.info("%s answers: %s", sum(seen.values()), seen.most_common())
    assert set(seen) >= OFTEN  # or the spoiling itself is spoilt
