"""What can become of a wake, in one word each: for the outbox, logs and metrics.

Constants of ours, never an error's text: that might quote an endpoint.
"""

from enum import StrEnum


class Code(StrEnum):
    """Why an event was settled as it was."""

    # Done.
    SENT = "SENT"
    COALESCED = "COALESCED"  # another event of the device speaks for it
    NOT_NEEDED = "NOT_NEEDED"  # disabled, not registered, or no mail waits
    NO_GATEWAY = "NO_GATEWAY"  # registered with a gateway that this instance does not have
    GONE = "GONE"  # the registration is dead, and dropped

    # Later, without a failure.
    DEBOUNCED = "DEBOUNCED"
    RATE_LIMITED = "RATE_LIMITED"
    UNAVAILABLE = "UNAVAILABLE"  # 503, and it says when to come back
    HOST_AWAY = "HOST_AWAY"  # the host did not answer a moment ago: not even tried
    LOOKUPS_BUSY = "LOOKUPS_BUSY"
    REDIS_AWAY = "REDIS_AWAY"

    # Failed.
    SEALED_SHUT = "SEALED_SHUT"  # no key of ours opens the registration
    DNS = "DNS"
    REFUSED_ADDRESS = "REFUSED_ADDRESS"
    CONNECT = "CONNECT"
    TLS = "TLS"
    TIMEOUT = "TIMEOUT"
    BROKEN_OFF = "BROKEN_OFF"  # the connection broke, or what came is not HTTP
    STATUS_3XX = "STATUS_3XX"
    STATUS_4XX = "STATUS_4XX"
    STATUS_5XX = "STATUS_5XX"
    BUG = "BUG"


class CallFailedError(Exception):
    """A call that got no answer, and why."""

    def __init__(self, code: Code) -> None:
        super().__init__(str(code))
        self.code = code
