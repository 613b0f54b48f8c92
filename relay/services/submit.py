"""Submitting one envelope (PROTOCOL section 2)."""

from idempotency.fingerprints import request_fingerprint
from relay.callers import Caller
from relay.services.intake import Intake
from relay.services.once import Answer, Effect, Request, in_line, run_once
from relay.services.submissions import Rules, Submission, accepted_document
from relay.services.submit_at_once import submit_at_once

ROUTE = "POST /v1/envelopes"


def submit(*, caller: Caller, key: str, submission: Submission) -> Answer:
    """Accept an envelope into its recipient's queue: 201, or 200 for a duplicate.

    By the fast path, or else straight down, and back up once: idempotency claims the key, the
    intake locks the queue, judges and writes, idempotency completes. Raises the refusals of
    PROTOCOL section 2 (EnvelopeTooLarge, ProtocolVersionUnsupported, TtlOutOfRange,
    RecipientUnknown, MessageIdConflict, RecipientQuotaExceeded) and those of `run_once`.
    """
    rules = Rules.current()
    fingerprint = request_fingerprint(route=ROUTE, fields=submission.fingerprint_fields())
    request = Request(caller, ROUTE, key, fingerprint)
    return _at_once(request, submission, rules) or run_once(
        request, lambda: _accept(submission, rules), queues=[submission.recipient_device_id]
    )


def _at_once(request: Request, submission: Submission, rules: Rules) -> Answer | None:
    """By the fast path, when policy has nothing against it and nothing else is special."""
    hashed = request.scope_hash
    if hashed is None or not rules.allow(submission):
        return None
    with in_line(hashed, [submission.recipient_device_id]):
        body = submit_at_once(
            scope_hash=hashed,
            fingerprint=request.fingerprint,
            submission=submission,
            rules=rules,
        )
    return None if body is None else Answer(201, body)


def _accept(submission: Submission, rules: Rules) -> Effect:
    rules.check(submission)
    intake = Intake.open([submission], rules)
    try:
        verdict = intake.judge(submission)
    finally:
        intake.write()  # of a conflict, its security event
    status = 201 if verdict.is_new else 200
    return Effect(status, accepted_document(verdict.envelope), intake.now)
