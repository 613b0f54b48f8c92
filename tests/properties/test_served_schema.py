"""Schemathesis over the served schema: each call by itself, and along the links between them."""

import logging
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
import schemathesis
from hypothesis.stateful import Bundle, initialize
from schemathesis.generation.stateful.state_machine import StepInput, StepOutput
from schemathesis.specs.openapi import stateful

from relay import tokens
from tests import contract
from tests.client import Party, RelayClient, make_device, make_provisioner
from tests.properties.profiles import examples, fuse
from tests.properties.served_schema import (
    INSTEAD,
    LINKS,
    SCHEMA,
    freshen,
    is_positive,
    operation_of,
    request_objects,
)

LOG = logging.getLogger(__name__)
_BY_PROVISIONER = {"device_put", "device_disable"}
#: Seconds: what takes longer hangs.
PATIENCE = 12


@pytest.fixture(scope="module", autouse=True)
def answers() -> Iterator[Counter[tuple[str, int]]]:
    """How often each call got each status: a long run says so in the log."""
    counted: Counter[tuple[str, int]] = Counter()
    yield counted
    LOG.info("%s cases: %s", sum(counted.values()), counted.most_common())


def test_the_schema_that_is_served_is_the_one_that_is_tested(relay: RelayClient) -> None:
    served = relay.call("GET", "/api/schema/", params={"format": "json"})
    assert served.json() == contract.schema()


def test_the_schema_says_that_unknown_members_are_refused() -> None:
    objects = request_objects(contract.schema())
    assert set(objects) >= {"Submission", "Batch", "Acknowledgement", "DevicePut"}
    plain = [each for each in objects.values() if each.get("type") == "object"]
    assert all(each["additionalProperties"] is False for each in plain)


@pytest.mark.parametrize("key", ['"', '"open', '""', '"a"b', " "])
def test_the_schema_says_which_keys_are_malformed(key: str) -> None:
    parameters = contract.schema()["paths"]["/v1/envelopes"]["post"]["parameters"]
    [pattern] = [each["schema"]["pattern"] for each in parameters if each["in"] == "header"]
    assert re.search(pattern, key) is None


def _entries(case: schemathesis.Case) -> list[dict[str, Any]]:
    """The envelopes of a case that was made to be in shape."""
    if is_positive(case) and operation_of(case) == "submit":
        return [case.body]
    if is_positive(case) and operation_of(case) == "submit_batch":
        return list(case.body["envelopes"])
    return []


def _bearer(party: Party) -> dict[str, str]:
    return {"Authorization": f"Bearer {party.token}"}


@pytest.fixture
def callers() -> dict[str, Party]:
    """One of each kind, and one whom envelopes go to."""
    return {
        "device": make_device(),
        "provisioner": make_provisioner(),
        "recipient": make_device(),
    }


@fuse
@SCHEMA.parametrize()
@examples(40)
def test_each_call_keeps_the_contract(
    case: schemathesis.Case,
    relay: RelayClient,
    callers: dict[str, Party],
    answers: Counter[tuple[str, int]],
) -> None:
    name = operation_of(case)
    caller = callers["provisioner" if name in _BY_PROVISIONER else "device"]
    freshen(case)
    for entry in _entries(case):
        if UUID(entry["message_id"]).int % 4:  # every fourth goes to nobody
            entry["recipient_device_id"] = str(callers["recipient"].id)
            entry["protocol_version"] = 1
    response = case.call_and_validate(
        base_url=relay.url,
        headers=None if name == "instance" else _bearer(caller),
        timeout=PATIENCE,
        **INSTEAD,
    )
    answers[name, response.status_code] += 1


class Workflow(SCHEMA.as_state_machine()):  # type: ignore[misc]
    """Chains of calls: a device is made, mail is sent to it, pulled and acknowledged.

    Every device of a scenario has the same secret, so that the scenario can call as each of
    them. `reader` is the device that pulls and acknowledges: whom mail was last sent to.
    """

    url: ClassVar[str]
    #: How often a link led to a success, over all scenarios.
    followed: ClassVar[Counter[str]] = Counter()
    answers: ClassVar[Counter[tuple[str, int]]] = Counter()

    def setup(self) -> None:
        """Callers of this scenario's own, and a first recipient."""
        self.provisioner, self.sender = make_provisioner(), make_device()
        self.secret = tokens.new_secret()
        self.reader = self.sender
        self.devices = {str(self.sender.id): self.sender}
        self.sent: set[tuple[UUID, str]] = set()

    @initialize(target=Bundle("catch_all"))
    def a_device_is_made(self) -> StepOutput:
        """Where the chains begin: Schemathesis starts none with a PUT by itself."""
        case = SCHEMA.find_operation_by_id("device_put").Case(
            path_parameters={"device_id": str(uuid4())},
            body={"token_sha256": self.secret.sha256.hex()},
            media_type="application/json",
        )
        self.recorder.record_case(case=case)
        self.control.record_step(StepInput.initial(case), self.recorder)
        return self.step(StepInput.initial(case))

    def before_call(self, case: schemathesis.Case) -> None:
        freshen(case)
        if is_positive(case) and operation_of(case) == "device_put":
            case.body["token_sha256"] = self.secret.sha256.hex()
        for entry in _entries(case):
            if entry["recipient_device_id"] not in self.devices:
                entry["recipient_device_id"] = str(self.reader.id)
            entry["protocol_version"] = 1
            entry.pop("ttl_seconds", None)

    def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
        name = operation_of(case)
        caller = self.provisioner if name in _BY_PROVISIONER else self.reader
        headers = {} if name == "instance" else _bearer(caller)
        return {"base_url": self.url, "headers": headers, "timeout": PATIENCE}

    def after_call(self, response: schemathesis.Response, case: schemathesis.Case) -> None:
        super().after_call(response, case)
        self.answers[operation_of(case), response.status_code] += 1
        if response.status_code >= 300:
            return
        name = operation_of(case)
        document = response.json()
        if name == "device_put":
            device_id = UUID(document["device_id"])
            token = tokens.device_token(device_id, self.secret)
            self.devices[str(device_id)] = self.reader = Party(device_id, token)
        elif name == "device_disable":
            self.devices.pop(document["device_id"], None)
            if document["device_id"] == str(self.reader.id):
                self.reader = make_device()
                self.devices[str(self.reader.id)] = self.reader
        elif name == "submit":
            self._remember(case.body["recipient_device_id"], document["message_id"])
        elif name == "submit_batch":
            for result in document["results"]:
                if result["status"] != "rejected":
                    self._remember(result["recipient_device_id"], result["message_id"])
        elif name == "pull":
            pulled = {(self.reader.id, each["message_id"]) for each in document["envelopes"]}
            assert pulled <= self.sent
        elif name == "acknowledge":
            for result in document["results"]:
                known = (self.reader.id, result["message_id"]) in self.sent
                assert result["status"] == ("acknowledged" if known else "unknown")

    def _remember(self, recipient: str, message_id: str) -> None:
        if recipient in self.devices:
            self.reader = self.devices[recipient]
            self.sent.add((self.reader.id, message_id))

    def validate_response(
        self, response: schemathesis.Response, case: schemathesis.Case, **options: Any
    ) -> None:
        case.validate_response(
            response, transport_kwargs=options, recorder=self.recorder, **INSTEAD
        )

    def step(self, input: StepInput) -> StepOutput:
        output = super().step(input)
        if input.transition is not None and input.is_applied and output.response.status_code < 300:
            self.followed[input.transition.id] += 1
        return output


@pytest.fixture
def _links_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Always: Schemathesis leaves some out by chance, and that Hypothesis cannot repeat."""
    monkeypatch.setattr(stateful, "DEFAULT_USE_PROBABILITY", 1.0)
    monkeypatch.setattr(stateful, "BASE_EXPLORATION_RATE", 0.0)


@fuse
@pytest.mark.usefixtures("_links_are_followed")
def test_chains_of_calls_keep_the_contract(
    relay: RelayClient, answers: Counter[tuple[str, int]]
) -> None:
    Workflow.url, Workflow.answers = relay.url, answers
    Workflow.followed.clear()
    Workflow.run(settings=examples(40, stateful_step_count=15))
    followed = {name for links in LINKS.values() for name in links if _times(name)}
    assert followed == {name for links in LINKS.values() for name in links}


def _times(link: str) -> int:
    return sum(times for name, times in Workflow.followed.items() if f"] {link} -> " in name)
