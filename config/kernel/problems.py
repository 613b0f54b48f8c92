"""The error catalogue: one class a code (PROTOCOL section 1, RFC 9457).

A `Problem` is raised by whatever layer finds it and becomes `application/problem+json` at the
edge. What it carries was written here or worked out by us, never taken from the request, so
that no answer echoes what a client sent.
"""

import secrets
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class FieldError:
    """One entry of `errors`: an RFC 6901 pointer into the request, and what is wrong there."""

    pointer: str
    detail: str


class Problem(Exception):  # noqa: N818 - it is the protocol's word
    """A refusal with a code of the catalogue.

    `retryable` speaks of the same request with the same key. A retryable problem always tells
    `retry_after`, in whole seconds.
    """

    code: ClassVar[str]
    status: ClassVar[int]
    title: ClassVar[str]
    explanation: ClassVar[str]
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        detail: str = "",
        *,
        errors: tuple[FieldError, ...] = (),
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(self.code)
        self.detail = detail or self.explanation
        self.errors = errors
        self.retry_after = retry_after if retry_after is not None else self.default_retry_after()
        self.headers = headers or {}

    @classmethod
    def default_retry_after(cls) -> int | None:
        """Seconds to wait before a retry when the raiser knows no better."""
        return 1 if cls.retryable else None

    @classmethod
    def slug(cls) -> str:
        """The fragment of `type`: the code in lower case with hyphens."""
        return cls.code.lower().replace("_", "-")

    def body(self, request_id: str) -> dict[str, Any]:
        """The members of the problem document."""
        document: dict[str, Any] = {
            "type": f"/api/errors#{self.slug()}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
            "retryable": self.retryable,
            "request_id": request_id,
        }
        if self.retry_after is not None:
            document["retry_after"] = self.retry_after
        if self.errors:
            document["errors"] = [
                {"pointer": error.pointer, "detail": error.detail} for error in self.errors
            ]
        return document


class MalformedRequest(Problem):
    code, status = "MALFORMED_REQUEST", 400
    title = "The request cannot be read"
    explanation = "The body is not a JSON object in UTF-8 with each member once."


class ValidationFailed(Problem):
    code, status = "VALIDATION_FAILED", 400
    title = "A field is not valid"
    explanation = "A field or query parameter is missing, unknown or not of its form."


class IdempotencyKeyMissing(Problem):
    code, status = "IDEMPOTENCY_KEY_MISSING", 400
    title = "Idempotency-Key is missing"
    explanation = "This call needs an Idempotency-Key header."


class IdempotencyKeyInvalid(Problem):
    code, status = "IDEMPOTENCY_KEY_INVALID", 400
    title = "Idempotency-Key is not valid"
    explanation = "Idempotency-Key must be 1 to 255 printable ASCII characters."


class CursorInvalid(Problem):
    code, status = "CURSOR_INVALID", 400
    title = "The cursor is not valid"
    explanation = "The cursor is not one that this server gave to this device."


class Unauthenticated(Problem):
    code, status = "UNAUTHENTICATED", 401
    title = "Not authenticated"
    explanation = "The bearer token is missing, malformed, unknown or no longer valid."

    def __init__(self, detail: str = "", **options: Any) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": 'Bearer realm="relay"'}, **options)


class Forbidden(Problem):
    code, status = "FORBIDDEN", 403
    title = "Not for this kind of caller"
    explanation = "The token is valid, but this call is for the other kind of caller."


class RecipientUnknown(Problem):
    code, status = "RECIPIENT_UNKNOWN", 404
    title = "No such recipient"
    explanation = "There is no active device with this id."


class NotFound(Problem):
    code, status = "NOT_FOUND", 404
    title = "Not found"
    explanation = "There is nothing at this address."


class MethodNotAllowed(Problem):
    code, status = "METHOD_NOT_ALLOWED", 405
    title = "Method not allowed"
    explanation = "This address does not answer to this method; see the Allow header."


class NotAcceptable(Problem):
    code, status = "NOT_ACCEPTABLE", 406
    title = "Not acceptable"
    explanation = "The relay answers application/json and application/problem+json only."


class UnsupportedMediaType(Problem):
    code, status = "UNSUPPORTED_MEDIA_TYPE", 415
    title = "Unsupported media type"
    explanation = "Send application/json in UTF-8 without a Content-Encoding."


class DeviceDisabled(Problem):
    code, status = "DEVICE_DISABLED", 409
    title = "The device is disabled"
    explanation = "A disabled id cannot be used again while its receipts are kept."


class MessageIdConflict(Problem):
    code, status = "MESSAGE_ID_CONFLICT", 409
    title = "message_id is taken"
    explanation = "This message_id is in the recipient's queue with other ciphertext."


class IdempotencyInProgress(Problem):
    code, status = "IDEMPOTENCY_IN_PROGRESS", 409
    title = "The first request is still running"
    explanation = "A request with this Idempotency-Key has not ended yet; try again with it."
    retryable = True


class CursorStale(Problem):
    code, status = "CURSOR_STALE", 410
    title = "The cursor is over"
    explanation = "The cursor was genuine but is over: pull again without one."


class EnvelopeTooLarge(Problem):
    code, status = "ENVELOPE_TOO_LARGE", 413
    title = "The envelope is too large"
    explanation = "The decoded ciphertext is over the limit of this instance."


class RequestTooLarge(Problem):
    code, status = "REQUEST_TOO_LARGE", 413
    title = "The request is too large"
    explanation = "The body is over 8 MiB."


class IdempotencyKeyReused(Problem):
    code, status = "IDEMPOTENCY_KEY_REUSED", 422
    title = "Idempotency-Key was used for another request"
    explanation = "This Idempotency-Key belongs to a request with other content."


class ProtocolVersionUnsupported(Problem):
    code, status = "PROTOCOL_VERSION_UNSUPPORTED", 422
    title = "Protocol version not supported"
    explanation = "This instance does not accept this protocol_version; see GET /v1/instance."


class TtlOutOfRange(Problem):
    code, status = "TTL_OUT_OF_RANGE", 422
    title = "ttl_seconds is too small"
    explanation = "ttl_seconds is below the minimum of this instance; see GET /v1/instance."


class RateLimited(Problem):
    code, status = "RATE_LIMITED", 429
    title = "Too many submits"
    explanation = "The caller sent more than its rate allows; slow down."
    retryable = True


class RecipientQuotaExceeded(Problem):
    code, status = "RECIPIENT_QUOTA_EXCEEDED", 429
    title = "The recipient's queue is full"
    explanation = "The recipient's queue takes no more for now."
    retryable = True

    @classmethod
    def default_retry_after(cls) -> int | None:
        """Coarse and jittered, and the same for every recipient, so that it tells nothing."""
        return 30 + secrets.randbelow(31)


class Internal(Problem):
    code, status = "INTERNAL", 500
    title = "Internal error"
    explanation = "The relay failed; the request_id finds it in the logs."
    retryable = True


class StorageUnavailable(Problem):
    code, status = "STORAGE_UNAVAILABLE", 503
    title = "Storage is not available"
    explanation = "Nothing was committed, or the commit is unknown: the same key resolves it."
    retryable = True


def catalogue() -> list[type[Problem]]:
    """Every problem, by status and code: what the docs' table is made from."""
    return sorted(Problem.__subclasses__(), key=lambda problem: (problem.status, problem.code))
