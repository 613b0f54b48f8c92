"""What an answer, or the lack of one, means for the event and for the registration."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from outbox.topics import Disposition, Settlement
from relay.wakes.client import Reply
from relay.wakes.codes import Code
from relay.wakes.registrations import Transport

#: What a push service says when a subscription is over (RFC 8030, section 7.3). The gateway has
#: 410 alone: a 404 there more likely means that WAKE_GATEWAY_URL is wrong, and believing it
#: would drop the registration of every device.
_GONE = {Transport.WEBPUSH: frozenset({404, 410}), Transport.GATEWAY: frozenset({410})}
#: Seconds for a Retry-After: within these bounds, and when there is none.
SHORTEST_WAIT, LONGEST_WAIT, USUAL_WAIT = 1.0, 3_600.0, 30.0
#: Seconds until a host that is away, or lookups that hang, are tried again.
AWAY_WAIT = 10.0

#: Nobody answered: what is wrong may be the host's, not this registration's.
_NO_ANSWER = frozenset({Code.DNS, Code.CONNECT, Code.TLS, Code.TIMEOUT, Code.BROKEN_OFF})


@dataclass(frozen=True)
class Verdict:
    """What becomes of the event, whether the registration is dead, whether the host is there.

    `answered` is None when the host was not asked.
    """

    settlement: Settlement
    is_gone: bool = False
    answered: bool | None = None


def done(code: Code, *, is_gone: bool = False, answered: bool | None = None) -> Verdict:
    """Nothing more to do."""
    return Verdict(Settlement(Disposition.DONE, code), is_gone, answered)


def later(code: Code, after_seconds: float, *, answered: bool | None = None) -> Verdict:
    """Again after a while; nobody's failure."""
    return Verdict(Settlement(Disposition.LATER, code, after_seconds), answered=answered)


def failed(code: Code, *, answered: bool | None = None) -> Verdict:
    """Again after a backoff, and dead in the end."""
    return Verdict(Settlement(Disposition.FAILED, code), answered=answered)


def of_reply(reply: Reply, *, transport: Transport, now: datetime) -> Verdict:
    """The verdict on an answer."""
    if 200 <= reply.status < 300:
        return done(Code.SENT, answered=True)
    if reply.status in _GONE[transport]:
        return done(Code.GONE, is_gone=True, answered=True)
    if reply.status == 429:
        return later(Code.RATE_LIMITED, wait_of(reply.retry_after, now=now), answered=True)
    if reply.status == 503 and reply.retry_after is not None:
        return later(Code.UNAVAILABLE, wait_of(reply.retry_after, now=now), answered=True)
    if reply.status >= 500:
        return failed(Code.STATUS_5XX, answered=True)
    return failed(Code.STATUS_4XX if reply.status >= 400 else Code.STATUS_3XX, answered=True)


def of_failure(code: Code) -> Verdict:
    """The verdict on a call without an answer."""
    if code is Code.LOOKUPS_BUSY:
        return later(code, AWAY_WAIT)
    return failed(code, answered=False if code in _NO_ANSWER else None)


def wait_of(retry_after: str | None, *, now: datetime) -> float:
    """Seconds to wait by a Retry-After, which is a number or a date (RFC 9110, 10.2.3)."""
    text = (retry_after or "").strip()
    seconds = USUAL_WAIT
    if text.isascii() and text.isdecimal():
        seconds = float(text[:9])
    elif text:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return USUAL_WAIT
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = math.ceil((aware - now).total_seconds())
    return min(max(seconds, SHORTEST_WAIT), LONGEST_WAIT)
