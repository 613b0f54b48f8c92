"""Random histories of a relay, each answer held against a dictionary model."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID, uuid4

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.api.helpers import set_limits, set_retention, sweep
from tests.client import Party, RelayClient, make_device, make_provisioner, new_key
from tests.concurrency.oracle import faults_found
from tests.properties.machine import ACKS, BATCH, SUBMIT, Calls, Kept, Write, wipe
from tests.properties.model import DAY, US, Entry, Queue, Rules
from tests.properties.profiles import examples, fuse

LOG = logging.getLogger(__name__)
BEGINNING = datetime(2026, 6, 1, 12, tzinfo=UTC)
CIPHERTEXTS = [b"a", b"b", b"c" * 1024, b"d" * 1025, b"e" * 2049]
NOBODY = UUID("00000000-0000-4000-8000-000000000000")

WHO = st.integers(0, 4)
MESSAGE = st.integers(0, 6)
ENTRY = st.fixed_dictionaries(
    {
        "recipient": st.sampled_from([0, 0, 0, 1, 1, 2, 3, None]),
        "message": MESSAGE,
        "ciphertext": st.sampled_from([b"a", b"a", *CIPHERTEXTS]),
        "version": st.sampled_from([1, 1, 1, 1, 2]),
        "ttl": st.sampled_from([None, None, 59, 60, 3_600, 86_400, 86_401, 604_801]),
    }
)
DELTA = st.sampled_from(
    [US, timedelta(seconds=1), timedelta(seconds=59), timedelta(hours=1), DAY - US, DAY, 9 * DAY]
)
POLICY = st.sampled_from(
    [
        {"pending_count": 11},
        {"pending_count": 10},
        {"envelope_bytes": 1024},
        {"envelope_bytes": 1025},
        {"envelope_bytes": 2048},
        {"protocol_versions": [1]},
        {"protocol_versions": [2]},
        {"protocol_versions": [1, 2]},
    ]
)
RETENTION = st.sampled_from(
    [
        {"ttl_days": 1},
        {"ttl_days": 7},
        {"ttl_days": 30},
        {"min_ttl_seconds": 1},
        {"min_ttl_seconds": 60},
        {"min_ttl_seconds": 86_400},
        {"receipt_days": 2},
        {"receipt_days": 8},
    ]
)
#: What the policies call it → what the model calls it.
NAMES = {"protocol_versions": "versions", "min_ttl_seconds": "min_ttl"}


class RelayMachine(RuleBasedStateMachine):
    """Senders, devices and an admin, in any order."""

    relay: ClassVar[RelayClient]
    writes: Bundle[Write] = Bundle("writes")
    cursors: Bundle[Kept] = Bundle("cursors")

    @initialize()
    def begin(self) -> None:
        wipe()
        self.calls = Calls(self.relay, BEGINNING)
        self.model = self.calls.model
        rules = Rules()
        set_limits(
            envelope_bytes=rules.envelope_bytes,
            pending_count=rules.pending_count,
            pending_bytes=rules.pending_bytes,
            protocol_versions=list(rules.versions),
        )
        set_retention(
            ttl_days=rules.ttl_days,
            min_ttl_seconds=rules.min_ttl,
            receipt_days=rules.receipt_days,
        )
        self.provisioner = make_provisioner()
        self.messages = [uuid4() for _ in range(7)]
        self.devices: list[Party] = []
        self.sweeps_again = 0
        for _ in range(2):
            self.add_device()

    # --- Devices ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.devices) < 5)
    @rule()
    def add_device(self) -> None:
        device = make_device()
        self.devices.append(device)
        self.model.queues[device.id] = Queue()

    @rule(who=WHO)
    def disable(self, who: int) -> None:
        if who >= 2:  # two devices live on, so that there is something to see
            self.calls.disable(self.provisioner, self._device(who))

    def _device(self, who: int) -> Party:
        return self.devices[who % len(self.devices)]

    # --- Submitting ---------------------------------------------------------------------------

    def _entry(self, drawn: dict[str, Any]) -> Entry:
        who = drawn["recipient"]
        return Entry(
            recipient=NOBODY if who is None else self._device(who).id,
            message_id=self.messages[drawn["message"]],
            ciphertext=drawn["ciphertext"],
            version=drawn["version"],
            ttl=drawn["ttl"],
        )

    def _write(self, write: Write, *, is_lost: bool = False) -> Write:
        (self.calls.write_and_lose_the_answer if is_lost else self.calls.write)(write)
        return write

    @rule(target=writes, drawn=ENTRY, is_lost=st.booleans())
    def submit(self, drawn: dict[str, Any], is_lost: bool) -> Write:
        write = Write(SUBMIT, self.provisioner, new_key(), self._entry(drawn))
        return self._write(write, is_lost=is_lost)

    @rule(target=writes, drawn=st.lists(ENTRY, min_size=1, max_size=12), is_lost=st.booleans())
    def batch(self, drawn: list[dict[str, Any]], is_lost: bool) -> Write:
        entries = tuple(self._entry(each) for each in drawn)
        write = Write(BATCH, self.devices[0], new_key(), entries)
        return self._write(write, is_lost=is_lost)

    @rule(target=writes, who=WHO, first=MESSAGE)
    def fill(self, who: int, first: int) -> Write:
        """Many small ones for one device, as many as there are ids."""
        device = self._device(who).id
        ids = self.messages[first:] + self.messages[:first]
        fresh = [uuid4() for _ in range(5)]
        entries = tuple(Entry(device, each, b"a", 1, None) for each in [*ids, *fresh])
        return self._write(Write(BATCH, self.provisioner, new_key(), entries))

    @rule(write=writes)
    def retry(self, write: Write) -> None:
        if not self.calls.knows_nothing_of(write):
            self.calls.write(write)

    @rule(write=writes, drawn=ENTRY)
    def use_a_key_again_for_something_else(self, write: Write, drawn: dict[str, Any]) -> None:
        other = Write(SUBMIT, write.caller, write.key, self._entry(drawn))
        if write.path == SUBMIT and not self.calls.knows_nothing_of(other):
            self.calls.write(other)

    # --- Reading and acknowledging ------------------------------------------------------------

    @rule(target=cursors, who=WHO, limit=st.integers(1, 4))
    def pull(self, who: int, limit: int) -> Any:
        return self._kept(self.calls.pull(self._device(who), limit=limit))

    @rule(target=cursors, kept=cursors, who=WHO, own=st.booleans(), limit=st.integers(1, 4))
    def pull_on(self, kept: Kept, who: int, own: bool, limit: int) -> Any:
        owner = next(each for each in self.devices if each.id == kept.device)
        device = owner if own else self._device(who)
        return self._kept(self.calls.pull(device, limit=limit, kept=kept))

    def _kept(self, kept: Kept | None) -> Any:
        return multiple() if kept is None else kept

    @rule(who=WHO, limit=st.integers(1, 5))
    def walk(self, who: int, limit: int) -> None:
        self.calls.walk(self._device(who), limit=limit)

    @rule(
        target=writes,
        who=WHO,
        which=st.lists(MESSAGE, min_size=1, max_size=5),
        keyed=st.booleans(),
    )
    def acknowledge(self, who: int, which: list[int], keyed: bool) -> Any:
        ids = tuple(self.messages[each] for each in which)
        write = Write(ACKS, self._device(who), new_key() if keyed else None, ids)
        self.calls.write(write)
        return write if keyed else multiple()

    @rule(who=WHO)
    def look(self, who: int) -> None:
        self.calls.look(self._device(who))

    # --- Time and policies --------------------------------------------------------------------

    @rule(delta=DELTA)
    def time_passes(self, delta: timedelta) -> None:
        self.model.advance(delta)
        self.calls.set_clock()

    @rule(offset=st.sampled_from([-US, 0 * US, US]), acknowledges=st.booleans())
    def an_envelope_comes_to_its_end(self, offset: timedelta, acknowledges: bool) -> None:
        """Just before its expiry, at it, or just after: it is looked at, or acknowledged."""
        now = self.model.now
        live = [each for queue in self.model.queues.values() for each in queue.live(now)]
        if not live:
            return
        first = min(live, key=lambda each: each.expires_at)
        self.model.advance(max(first.expires_at + offset - now, 0 * US))
        self.calls.set_clock()
        device = next(each for each in self.devices if each.id == first.entry.recipient)
        if acknowledges:
            self.calls.write(Write(ACKS, device, None, (first.entry.message_id,)))
        self.calls.walk(device, limit=3)
        self.calls.look(device)

    @precondition(lambda self: self.calls.answered >= self.sweeps_again)
    @rule()
    def sweep(self) -> None:
        """Not twice in a row: it is the slowest step, and the second would find nothing."""
        sweep()
        self.model.sweep()
        self.sweeps_again = self.calls.answered + 3

    @rule(change=POLICY)
    def change_limits(self, change: dict[str, Any]) -> None:
        set_limits(**change)
        self._change_rules(change)

    @rule(change=RETENTION)
    def change_retention(self, change: dict[str, Any]) -> None:
        set_retention(**change)
        self._change_rules(change)

    def _change_rules(self, change: dict[str, Any]) -> None:
        for name, value in change.items():
            as_held = tuple(value) if isinstance(value, list) else value
            setattr(self.model.rules, NAMES.get(name, name), as_held)

    def teardown(self) -> None:
        if not hasattr(self, "devices"):
            return
        for device in self.devices:
            self.calls.look(device)
            self.calls.walk(device, limit=50)
        # Where receipts lapsed, a line has gaps at its beginning.
        assert [
            each for each in faults_found() if "seq is" not in each and "line" not in each
        ] == []


@fuse
def test_every_answer_is_the_models_whatever_happened_before(relay: RelayClient) -> None:
    RelayMachine.relay = relay
    Calls.steps.clear()
    run_state_machine_as_test(RelayMachine, settings=examples(50, stateful_step_count=40))
    LOG.info("%s steps: %s", sum(Calls.steps.values()), Calls.steps.most_common())
