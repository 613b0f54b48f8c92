"""Submitting one envelope (PROTOCOL section 2)."""

from idempotency.fingerprints import request_fingerprint
from relay.callers import Caller
from relay.services.intake import Intake
from relay.services.once import Answer, Effect, Request, run_once
from relay.services.submissions import Rules, Submission, accepted_document

ROUTE = "POST /v1/envelopes"


def submit(*, caller: Caller, key: str, submission: Submission) -> Answer:
    """Accept an envelope into its recipient's queue: 201, or 200 for a duplicate.

    Straight down, and back up once: idempotency claims the key, the intake locks the queue,
    judges and writes, idempotency completes. Raises the refusals of PROTOCOL section 2
    (EnvelopeTooLarge, ProtocolVersionUnsupported, TtlOutOfRange, RecipientUnknown,
    MessageIdConflict, RecipientQuotaExceeded) and those of `run_once`.
    """
    rules = Rules.current()
    fingerprint = request_fingerprint(route=ROUTE, fields=submission.fingerprint_fields())
    request = Request(caller, ROUTE, key, fingerprint)
    return run_once(
        request, lambda: _accept(submission, rules), queues=[submission.recipient_device_id]
    )


def _accept(submission: Submission, rules: Rules) -> Effect:
    rules.check(submission)
    intake = Intake.open([submission], rules)
    try:
        verdict = intake.judge(submission)
    finally:
        intake.write()  # of a conflict, its security event
    status = 201 if verdict.is_new else 200
    return Effect(status, accepted_document(verdict.envelope), intake.now)
