"""Submitting up to a hundred envelopes at once (PROTOCOL section 2, "batch")."""

from collections.abc import Sequence
from typing import Any

from config.kernel import clock
from config.kernel.database import limit_lock_waits
from config.kernel.problems import Problem
from idempotency.fingerprints import Field, request_fingerprint
from relay.callers import Caller
from relay.services.intake import Intake
from relay.services.once import Answer, Effect, Request, run_once
from relay.services.submissions import Rules, Submission, accepted_document

ROUTE = "POST /v1/envelopes/batch"
MOST = 100
#: A batch holds the queues that it has while it waits for the next one. Were one stuck, its
#: neighbours would wait along for as long as this.
LOCK_WAIT_MS = 300


def submit_batch(*, caller: Caller, key: str, submissions: Sequence[Submission]) -> Answer:
    """Judge each entry as if they were sent one after another; store the accepted ones together.

    200 when at least one entry was accepted or a duplicate, with a result for each, in order.
    422 with the same body when every entry was rejected; then nothing is kept under the key.
    Raises the problems of `run_once`.
    """
    rules = Rules.current()
    fields: list[Field] = [len(submissions)]
    for submission in submissions:
        fields += submission.fingerprint_fields()
    request = Request(caller, ROUTE, key, request_fingerprint(route=ROUTE, fields=fields))
    queues = [submission.recipient_device_id for submission in submissions]
    return run_once(request, lambda: _accept_each(submissions, rules), queues=queues)


def _accept_each(submissions: Sequence[Submission], rules: Rules) -> Effect:
    refused = _refused_by_policy(submissions, rules)
    # Only what policy lets through needs its queue locked.
    allowed = [entry for index, entry in enumerate(submissions) if index not in refused]
    if not allowed:
        return Effect(422, _document(submissions, refused, {}), clock.read())
    limit_lock_waits(LOCK_WAIT_MS)
    intake = Intake.open(allowed, rules)
    results: dict[int, dict[str, Any]] = {}
    for index, submission in enumerate(submissions):
        if index in refused:
            continue
        try:
            verdict = intake.judge(submission)
        except Problem as problem:
            refused[index] = problem
        else:
            status = "accepted" if verdict.is_new else "duplicate"
            results[index] = {"status": status, **accepted_document(verdict.envelope)}
    intake.write()
    return Effect(200 if results else 422, _document(submissions, refused, results), intake.now)


def _refused_by_policy(submissions: Sequence[Submission], rules: Rules) -> dict[int, Problem]:
    refused: dict[int, Problem] = {}
    for index, submission in enumerate(submissions):
        try:
            rules.check(submission)
        except Problem as problem:
            refused[index] = problem
    return refused


def _document(
    submissions: Sequence[Submission],
    refused: dict[int, Problem],
    results: dict[int, dict[str, Any]],
) -> dict[str, Any]:
    return {
        "results": [
            _entry(submission, refused.get(index), results.get(index, {}))
            for index, submission in enumerate(submissions)
        ]
    }


def _entry(
    submission: Submission, problem: Problem | None, result: dict[str, Any]
) -> dict[str, Any]:
    names = {
        "message_id": str(submission.message_id),
        "recipient_device_id": str(submission.recipient_device_id),
    }
    if problem is None:
        return {**names, **result}
    error: dict[str, Any] = {"code": problem.code, "retryable": problem.retryable}
    if problem.retry_after is not None:
        error["retry_after"] = problem.retry_after
    return {**names, "status": "rejected", "error": error}
