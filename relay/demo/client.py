"""The reference client of the protocol, v1: what a client has to get right, and nothing else.

Plain httpx; read it from top to bottom. Four habits make it safe on a bad network:

1. A draft is complete before its first attempt: ciphertext, message_id and Idempotency-Key are
   made once and kept until the relay has answered. Every attempt sends the very same.
2. No answer is no answer: after a time-out the envelope may or may not be there. The same key
   finds out, and never makes a second one (PROTOCOL section 1, Idempotency).
3. The cursor says how far we have read. It never says what was delivered: only an
   acknowledgement does, and only after the message is safely ours (sections 3 and 4).
4. Whatever may come twice is told apart by its message_id.
"""

import base64
import itertools
import random
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeVar
from uuid import UUID, uuid4

import httpx

T = TypeVar("T")
Json = dict[str, Any]

#: The bound on the waits that we choose ourselves doubles from the first to the longest (seconds).
FIRST_WAIT, LONGEST_WAIT = 0.5, 20.0
_ACKNOWLEDGE_MOST = 100
_NO_ANSWER = (
    httpx.TimeoutException,
    httpx.NetworkError,
    httpx.ProxyError,
    httpx.RemoteProtocolError,  # the connection ended in the middle of the answer
    httpx.DecodingError,
)


class RelayError(Exception):
    """A call that did not succeed; the text is one line for a person."""


class Failure(RelayError):  # noqa: N818 - the protocol names refusals, not errors
    """One attempt's: the relay's refusal, or no answer at all (`NO_ANSWER`).

    `code` is the catalogue's; `HTTP_<status>` when it was not the relay that spoke.
    `retryable` is about the same request with the same key; `retry_after` is in seconds.
    """

    def __init__(self, code: str, detail: str, *, retryable: bool, retry_after: float = 0) -> None:
        one_line = "".join(char if char.isprintable() else " " for char in detail)
        super().__init__(f"{code}: {one_line}")
        self.code, self.retryable, self.retry_after = code, retryable, retry_after


class GaveUp(RelayError):  # noqa: N818
    """No success within our patience. A draft can be submitted again later, kept as it is."""


class NotARelay(RelayError):  # noqa: N818
    """A success that is not of the protocol's shape, such as a portal's login page."""


@dataclass(frozen=True)
class Credentials:
    """A device's id and secret. Only `token_sha256` ever goes to the provisioner (section 6)."""

    device_id: UUID = field(default_factory=uuid4)
    secret: bytes = field(repr=False, default_factory=lambda: secrets.token_bytes(32))

    @property
    def token(self) -> str:
        """What the device shows with each call (section 1)."""
        text = base64.urlsafe_b64encode(self.secret).rstrip(b"=").decode()
        return f"rld1.{self.device_id}.{text}"

    @property
    def token_sha256(self) -> str:
        """The digest of the 32 bytes themselves, not of their text."""
        return sha256(self.secret).hexdigest()


@dataclass(frozen=True)
class Draft:
    """An envelope to submit. Store it, whole, before the first attempt; drop it on an answer.

    Never encrypt again for a retry: other ciphertext under the same key is a 422, and under the
    same message_id a 409. The relay keeps the key for 24 hours; a draft that waited longer is
    still safe, because the message_id makes it a duplicate (200) rather than a second envelope.
    """

    recipient: UUID
    ciphertext: bytes = field(repr=False)
    ttl_seconds: int | None = None
    message_id: UUID = field(default_factory=uuid4)
    key: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True)
class Accepted:
    """The relay has it. `duplicate`: it had it before, under another key."""

    accepted_at: str
    duplicate: bool
    replayed: bool
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Envelope:
    """An envelope of one's own queue."""

    message_id: UUID
    ciphertext: bytes = field(repr=False)


@dataclass(frozen=True)
class Page:
    """A page of the queue, and where to go on (section 3)."""

    envelopes: list[Envelope]
    next_cursor: str = field(repr=False)
    has_more: bool


class Client:
    """One caller's side of the protocol. `patience`: seconds a call may take with its retries.

    `http` brings the base URL and follows no redirects: a token goes where it was meant to go.
    `on_retry` hears of each failed attempt, and how long we wait, before we do.
    """

    def __init__(
        self,
        http: httpx.Client,
        token: str | None = None,
        *,
        patience: float = 180.0,
        attempt_timeout: float = 15.0,
        on_retry: Callable[[Failure, float], None] = lambda failure, wait: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._http, self._token = http, token
        self._patience, self._attempt_timeout = patience, attempt_timeout
        self._on_retry, self._sleep, self._clock, self._jitter = on_retry, sleep, clock, jitter

    def submit(self, draft: Draft) -> Accepted:
        """Hand an envelope over. 201: accepted, or its replay; 200: it was there before."""
        body = {
            "recipient_device_id": str(draft.recipient),
            "message_id": str(draft.message_id),
            "protocol_version": 1,
            "ciphertext": base64.b64encode(draft.ciphertext).decode(),
        }
        ttl = {} if draft.ttl_seconds is None else {"ttl_seconds": draft.ttl_seconds}
        response = self._call("POST", "/v1/envelopes", key=draft.key, json={**body, **ttl})
        return _read(response, lambda found: _accepted(draft, response, found))

    def pull(self, *, cursor: str | None = None, limit: int = 50) -> Page:
        """A page of one's own queue. Deletes nothing."""
        query = {"limit": limit} if cursor is None else {"limit": limit, "cursor": cursor}
        return _read(self._call("GET", "/v1/envelopes", params=query), _page)

    def acknowledge(self, message_ids: Iterable[UUID]) -> dict[UUID, str]:
        """Say "delivered and decrypted"; what became of each id (section 4)."""
        ids, outcomes = [str(one) for one in message_ids], dict[UUID, str]()
        for start in range(0, len(ids), _ACKNOWLEDGE_MOST):
            body = {"message_ids": ids[start : start + _ACKNOWLEDGE_MOST]}
            outcomes |= _read(self._call("POST", "/v1/acks", json=body), _outcomes)
        return outcomes

    def device(self) -> Json:
        """What waits for the calling device, and its limits (section 6)."""
        return _read(self._call("GET", "/v1/device"), dict)

    def instance(self) -> Json:
        """What this relay accepts and promises; needs no token."""
        return _read(self._call("GET", "/v1/instance"), dict)

    def put_device(self, credentials: Credentials) -> None:
        """As a provisioner: make a device, or replace its secret."""
        body = {"token_sha256": credentials.token_sha256}
        _read(self._call("PUT", f"/v1/devices/{credentials.device_id}", json=body), dict)

    def disable_device(self, device_id: UUID) -> None:
        """As a provisioner: end a device."""
        _read(self._call("DELETE", f"/v1/devices/{device_id}"), dict)

    def _call(self, method: str, path: str, *, key: str = "", **content: Any) -> httpx.Response:
        """One call, repeated while that can help and the patience lasts.

        A write without a key of its caller's gets one here; every attempt sends the same.
        Raises Failure at once when it is not retryable, and GaveUp.
        """
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        if method != "GET":
            headers["Idempotency-Key"] = key or uuid4().hex
        give_up_at = self._clock() + self._patience
        for attempt in itertools.count():
            timeout = max(0.05, min(self._attempt_timeout, give_up_at - self._clock()))
            try:
                response = self._http.request(
                    method, path, headers=headers, timeout=timeout, **content
                )
                if response.is_success:
                    return response
                failure = _failure(response)
            except _NO_ANSWER as error:
                failure = Failure("NO_ANSWER", str(error) or type(error).__name__, retryable=True)
            if not failure.retryable:
                raise failure
            wait = backoff(attempt, retry_after=failure.retry_after, jitter=self._jitter())
            resume_at = self._clock() + wait
            if resume_at >= give_up_at:
                tries = f"{attempt + 1} attempt{'s' if attempt else ''}"
                raise GaveUp(f"{method} {path} gave up after {tries}: {failure}") from failure
            self._on_retry(failure, wait)
            self._sleep(max(0.0, resume_at - self._clock()))
        raise AssertionError("the attempts never end by themselves")


def backoff(attempt: int, *, retry_after: float, jitter: float) -> float:
    """Seconds to wait after the attempt numbered from 0; `jitter` is a random number below 1.

    Doubles up to a bound, half of it random, so that clients that failed together do not come
    back together. Never shorter than what the relay asked for (section 1, Errors).
    """
    bound = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt, 16))
    return max(retry_after, bound / 2) + jitter * bound / 2


@dataclass
class Inbox:
    """What a device remembers about its queue. A real one stores this beside its messages.

    `seen` outlives the acknowledgement: after a restore of the relay's database acknowledged
    mail comes again. Keep an id as long as a relay may keep an envelope (30 days).
    """

    cursor: str | None = None
    seen: set[UUID] = field(default_factory=set)
    #: Ours, and not known to be acknowledged. The cursor is past them already.
    owed: set[UUID] = field(default_factory=set)

    def receive(self, client: Client, take: Callable[[Envelope], bool], *, limit: int) -> Page:
        """Pull the next page and `take` each envelope that is new.

        `take` decrypts and stores, and returns whether it could. What it could not stays
        unacknowledged and ends by its TTL; the cursor passes it, so it blocks nothing. The
        cursor is kept after the whole page: a crash before that repeats, and skips nothing.
        """
        page = self._pull(client, limit)
        for envelope in page.envelopes:
            if envelope.message_id in self.seen or take(envelope):
                self.seen.add(envelope.message_id)
                self.owed.add(envelope.message_id)
        self.cursor = page.next_cursor
        return page

    def acknowledge(self, client: Client) -> dict[UUID, str]:
        """Acknowledge what is owed. Whatever the outcome says, it is final (section 4)."""
        outcomes = client.acknowledge(self.owed)
        self.owed -= outcomes.keys()
        return outcomes

    def _pull(self, client: Client, limit: int) -> Page:
        """A page behind the cursor, or from the start when the cursor is over (410)."""
        try:
            return client.pull(cursor=self.cursor, limit=limit)
        except Failure as failure:
            if failure.code != "CURSOR_STALE" or self.cursor is None:
                raise
            self.cursor = None
            return client.pull(limit=limit)


def _read(response: httpx.Response, parse: Callable[[Json], T]) -> T:
    """The parsed document of a success. Members that we do not know are ignored."""
    try:
        return parse(response.json())
    except (ValueError, TypeError, LookupError) as error:
        raise NotARelay(f"{response.url} does not answer as a relay does.") from error


def _accepted(draft: Draft, response: httpx.Response, found: Json) -> Accepted:
    if UUID(found["message_id"]) != draft.message_id:  # believe nobody else's answer
        raise ValueError("this names another message")
    replayed = response.headers.get("Idempotency-Replayed") == "true"
    return Accepted(found["accepted_at"], response.status_code == 200, replayed, response.content)


def _page(found: Json) -> Page:
    envelopes = [
        Envelope(UUID(one["message_id"]), base64.b64decode(one["ciphertext"], validate=True))
        for one in found["envelopes"]
    ]
    return Page(envelopes, found["next_cursor"], found["has_more"])


def _outcomes(found: Json) -> dict[UUID, str]:
    return {UUID(one["message_id"]): one["status"] for one in found["results"]}


def _failure(response: httpx.Response) -> Failure:
    """The problem (RFC 9457) of an answer; whoever gave it, 429 and 5xx may be tried again."""
    try:
        problem = {**response.json()}
    except (ValueError, TypeError):
        problem = {}
    status = response.status_code
    return Failure(
        problem.get("code", f"HTTP_{status}"),
        str(problem.get("detail", f"status {status} from {response.url}")),
        retryable=problem.get("retryable", status == 429) is True or status >= 500,
        retry_after=max(
            _seconds(problem.get("retry_after")), _seconds(response.headers.get("Retry-After"))
        ),
    )


def _seconds(value: object) -> float:
    """A number of seconds, as the body and the header give it; 0 for anything else."""
    try:
        return max(0.0, float(str(value)))
    except ValueError:
        return 0.0
