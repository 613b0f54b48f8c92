"""What the demo does, step by step, and the timeline that it tells meanwhile.

Two devices carry one file through a running relay, over HTTP alone. On the way the answer to
one submit is really lost, so that what the reference client does about it can be watched.
"""

import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import httpx
from nacl.public import PrivateKey
from rich.text import Text

from relay.demo import crypto
from relay.demo.client import (
    Accepted,
    Client,
    Credentials,
    Draft,
    Envelope,
    Failure,
    GaveUp,
    Inbox,
    Json,
    RelayError,
)
from relay.demo.network import LostAnswer, open_http
from relay.demo.words import KIB, MIB, DemoFailed, NoRelay, counted, in_units

PART_BYTES = 48 * KIB
#: More would be a load test: the default rate lets about 1 MiB a second through.
MOST_BYTES = 64 * MIB
#: What a demo that was killed leaves behind is gone after this long (seconds).
_TTL = 3600
_FIRST_ANSWER_WITHIN, _CLEAN_UP_WITHIN = 3.0, 5.0
_PAGES, _LARGEST_PAGE = 4, 100
_LINES_A_TRANSFER = 8
#: What to do about a provisioner's token that is no longer good.
_WAY_BACK = (
    " Start `manage.py up` again, which sees to its own; or make one with `manage.py provisioner "
    "rotate --name NAME` and pass it by --provisioner-token-file."
)
_STYLES = {"relay": "cyan", "provisioner": "magenta", "sender": "blue", "recipient": "green"}


@dataclass(frozen=True)
class Plan:
    """What to carry, and through which relay."""

    name: str
    content: bytes = field(repr=False)
    url: str
    provisioner_token: str = field(repr=False)


@dataclass(frozen=True)
class Facts:
    """What came of it, as `--json` prints it. `receipts`: ids that the relay still knows."""

    bytes: int
    parts: int
    pages: int
    seconds: float
    server_holds: dict[str, object]
    equal: bool = True  # or there would be no facts
    replayed: bool = True

    def __str__(self) -> str:
        parts, pages = counted(self.parts, "part"), counted(self.pages, "page")
        size = in_units(self.bytes)
        return f"\nEqual: {size} there in {parts}, back in {pages}, {self.seconds:.2f} s."


def run(
    plan: Plan,
    *,
    show: Callable[[Text], None],
    warn: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Facts:
    """Carry the file there and back; both devices are disabled again, whatever happens.

    Raises DemoFailed, crypto.Tampered, and the client's RelayError.
    """
    lost = LostAnswer()
    with open_http(plan.url, lost) as http:
        story = Story(plan, http, lost, Timeline(show), sleep)
        try:
            return story.run()
        finally:
            story.clean_up(warn)


def plan_from(file: Path, url: str, token_file: Path | None, token: str) -> Plan:
    """The plan for a file; a token in a file wins. Raises DemoFailed."""
    try:
        if token_file is not None:
            token = token_file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DemoFailed(f"{token_file} cannot be read: {error.strerror}.") from error
    token = token.strip()
    if not token:
        raise DemoFailed(
            "No provisioner's token: name --provisioner-token-file, set "
            "RELAY_DEMO_PROVISIONER_TOKEN, or start `manage.py up`, which makes one."
        )
    if not re.fullmatch(r"rlp1\.[0-9a-fA-F-]{36}\.[A-Za-z0-9_-]{43}", token):
        raise DemoFailed("The token is no provisioner's: those read rlp1.<uuid>.<secret>.")
    name = "".join(char if char.isprintable() else "?" for char in file.name)
    return Plan(name, read_file(file), url, token)


def read_file(path: Path) -> bytes:
    """The file's bytes. Raises DemoFailed for what is no file, unreadable or too large."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DemoFailed(f"{path} is not a regular file.")
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise DemoFailed(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > MOST_BYTES:
        size, most = in_units(path.stat().st_size), in_units(MOST_BYTES)
        raise DemoFailed(f"{path} has {size}; the demo carries {most} at most.")
    return content


class Timeline:
    """Lines of "when, who, what", relative to the start."""

    def __init__(self, show: Callable[[Text], None]) -> None:
        self._show = show
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def title(self, text: str) -> None:
        """The heading."""
        self._show(Text(f"{text}\n", "bold"))

    def tell(self, who: str, what: str) -> None:
        """One line."""
        when = (f"+{self.seconds:.2f} s".rjust(9), "dim")
        self._show(
            Text.assemble(when, "  ", (who.ljust(11), _STYLES.get(who, "yellow")), "  ", what)
        )


@dataclass
class Device:
    """A device of the demo: its credentials and its key pair."""

    credentials: Credentials = field(default_factory=Credentials)
    key: PrivateKey = field(default_factory=PrivateKey.generate)

    @property
    def id(self) -> UUID:
        return self.credentials.device_id


class Story:
    """One run."""

    def __init__(
        self,
        plan: Plan,
        http: httpx.Client,
        lost: LostAnswer,
        timeline: Timeline,
        sleep: Callable[[float], None],
    ) -> None:
        self._plan, self._http, self._lost, self._sleep = plan, http, lost, sleep
        self._timeline, self._tell = timeline, timeline.tell
        lost.on_loss = partial(
            self._tell, "network", "loses the answer, on purpose: the sender's time is up"
        )
        self._sender, self._recipient = Device(), Device()
        self._as_sender = self._client("sender", self._sender.credentials.token)
        self._as_recipient = self._client("recipient", self._recipient.credentials.token)
        self._inbox, self._assembly = Inbox(), crypto.Assembly()
        self._made: list[UUID] = []
        self._outcomes: dict[UUID, str] = {}
        self._pages, self._page_limit = 0, _LARGEST_PAGE

    def run(self) -> Facts:
        """From the first question to what the relay holds in the end."""
        plan = self._plan
        self._timeline.title(f"{plan.name} ({in_units(len(plan.content))}) through {plan.url}")
        instance = self._meet()
        self._make_devices()
        drafts = self._seal(instance)
        self._send(drafts, _queue_takes(instance, drafts))
        self._tell_pending("holds")
        self._pull()
        self._compare()
        self._acknowledge()
        return Facts(
            bytes=len(plan.content),
            parts=len(drafts),
            pages=self._pages,
            server_holds=self._holdings(instance),
            seconds=round(self._timeline.seconds, 3),
        )

    def clean_up(self, warn: Callable[[str], None]) -> None:
        """Disable what was made, or may have been: its answer can be what got lost."""
        provisioner = self._client("provisioner", self._plan.provisioner_token, _CLEAN_UP_WITHIN)
        for position, device_id in enumerate(self._made):
            try:
                provisioner.disable_device(device_id)
            except RelayError as error:
                if isinstance(error, Failure) and error.code == "NOT_FOUND":
                    continue
                left = ", ".join(map(str, self._made[position:]))
                warn(f"Could not disable every device of the demo ({left}): {error}")
                return
        if self._made:
            devices = counted(len(self._made), "device")
            self._tell("provisioner", f"disabled {devices}: the demo leaves nothing pending")

    def _client(self, who: str, token: str | None, patience: float = 180.0) -> Client:
        on_retry = partial(self._tell_retry, who)
        return Client(self._http, token, patience=patience, on_retry=on_retry, sleep=self._sleep)

    def _tell_retry(self, who: str, failure: Failure, wait: float) -> None:
        self._tell(who, f"{failure.code}: tries the very same again in {wait:.2f} s")
        if failure.code == "RECIPIENT_QUOTA_EXCEEDED":
            self._drain()  # all that helps a full queue, and the sender waits anyway

    def _meet(self) -> Json:
        """Who answers at the address. Raises NoRelay, and DemoFailed for something else."""
        url, anyone = self._plan.url, Client(self._http, patience=_FIRST_ANSWER_WITHIN)
        try:
            instance = anyone.instance()
            limits, versions = instance["limits"], instance["protocol_versions"]
            size, days = in_units(limits["envelope_bytes"]), instance["ttl"]["maximum"] / 86_400
        except GaveUp as error:
            why = error.__cause__
            if isinstance(why, Failure) and why.code != "NO_ANSWER":
                raise DemoFailed(f"The relay at {url} cannot work just now: {why}") from error
            raise NoRelay(f"No relay answers at {url}. Is `manage.py up` running?") from error
        except (RelayError, LookupError, TypeError) as error:
            raise DemoFailed(f"What answers at {url} is not a relay: {error}") from error
        if 1 not in versions:
            raise DemoFailed(f"The relay takes protocol versions {versions}; the demo speaks 1.")
        self._tell("relay", f"answers: envelopes up to {size}, kept {days:g} days at most")
        return instance

    def _make_devices(self) -> None:
        """Two devices, whose secrets never leave this process."""
        provisioner = self._client("provisioner", self._plan.provisioner_token)
        for device in (self._sender, self._recipient):
            self._made.append(device.id)
            try:
                provisioner.put_device(device.credentials)
            except Failure as failure:  # a clear no: there is nothing to disable
                self._made.remove(device.id)
                advice = _WAY_BACK if failure.code == "UNAUTHENTICATED" else ""
                raise DemoFailed(
                    f"The provisioner cannot make a device: {failure}{advice}"
                ) from failure
        self._tell("provisioner", "made two devices, by SHA-256 of secrets that they keep")

    def _seal(self, instance: Json) -> list[Draft]:
        """Everything encrypted, once: from here on only drafts travel."""
        size = min(PART_BYTES, instance["limits"]["envelope_bytes"] - crypto.OVERHEAD)
        ttl = max(_TTL, instance["ttl"]["minimum"])
        recipient = self._recipient
        seal = partial(
            crypto.seal, sender=self._sender.key, recipient=recipient.key.public_key, size=size
        )
        drafts = [
            Draft(recipient.id, seal(part), ttl)
            for part in crypto.split(self._plan.content, recipient=recipient.id, size=size)
        ]
        parts = counted(len(drafts), "part")
        self._tell("sender", f"encrypted {parts}, padded to {in_units(size)}")
        return drafts

    def _send(self, drafts: list[Draft], queue_takes: int) -> None:
        """Submit each part; whenever the queue has had its fill, the recipient empties it."""
        loses = (len(drafts) - 1) // 2
        step = -(-len(drafts) // _LINES_A_TRANSFER)
        self._page_limit = min(_LARGEST_PAGE, -(-min(len(drafts), queue_takes) // _PAGES))
        for index, draft in enumerate(drafts):
            if index and index % queue_takes == 0:
                self._drain()
            self._lost.armed = index == loses
            accepted = self._as_sender.submit(draft)
            if index == loses:
                self._check_replay(index, accepted)
                if step == 1:
                    continue
            if (index + 1) % step == 0 or index + 1 == len(drafts):
                part = _span(index // step * step + 1, index + 1, len(drafts))
                self._tell("sender", f"sent {part} ({in_units(len(draft.ciphertext))})")

    def _check_replay(self, index: int, accepted: Accepted) -> None:
        """Whether the second answer is the one that was lost (PROTOCOL section 1)."""
        if not accepted.replayed or accepted.body != self._lost.body:
            raise DemoFailed("A repeated submit was not answered with the first 201.")
        self._tell("sender", f"sent part {index + 1} again: 201 replayed, byte for byte")

    def _drain(self) -> None:
        """Make room in a full queue: only an acknowledgement does."""
        self._pull()
        self._acknowledge()

    def _pull(self) -> None:
        """Page by page to the end of the queue, from where the cursor stands."""
        has_more = True
        while has_more:
            had = len(self._assembly.parts)
            page = self._inbox.receive(self._as_recipient, self._take, limit=self._page_limit)
            self._pages, has_more = self._pages + 1, page.has_more
            opened = counted(len(self._assembly.parts) - had, "envelope")
            self._tell(
                "recipient", f"page {self._pages}: {opened} decrypted, then the cursor saved"
            )

    def _compare(self) -> None:
        """Before the last acknowledgement: what is not whole stays on the server."""
        content = self._plan.content
        if self._assembly.content() != content:
            raise DemoFailed("What came back is not what was sent.")
        self._tell("recipient", f"has {in_units(len(content))}, byte for byte what was sent")

    def _acknowledge(self) -> None:
        outcomes = self._inbox.acknowledge(self._as_recipient)
        self._outcomes |= outcomes
        self._tell("recipient", f"acknowledged {counted(len(outcomes), 'envelope')}")

    def _take(self, envelope: Envelope) -> bool:
        """Decrypt and keep a part; what is not the sender's stays unacknowledged."""
        try:
            part = crypto.unseal(
                envelope.ciphertext,
                recipient=self._recipient.key,
                sender=self._sender.key.public_key,
                device=self._recipient.id,
            )
            self._assembly.add(part)
        except crypto.Tampered as error:
            self._tell("recipient", f"leaves {envelope.message_id} alone: {error}")
            return False
        return True

    def _holdings(self, instance: Json) -> dict[str, object]:
        """What stays on the server: the queue is empty, and every receipt still answers."""
        again = self._as_recipient.acknowledge(self._outcomes)
        if again != self._outcomes:
            raise DemoFailed("A repeated acknowledgement was answered differently.")
        known = sum(status == "acknowledged" for status in again.values())
        self._tell("recipient", f"acknowledged again: {counted(known, 'equal answer')}")
        pending = self._tell_pending("still holds")
        kept = f"{counted(known, 'receipt')} for {counted(instance['receipt_days'], 'day')}"
        self._tell("relay", f"and {kept}; ciphertext: an hour at most")
        return {"pending": pending, "receipts": known, "receipt_days": instance["receipt_days"]}

    def _tell_pending(self, how: str) -> Json:
        pending: Json = self._as_recipient.device()["pending"]
        waiting = counted(pending["count"], "pending envelope")
        self._tell("relay", f"{how} {waiting}, {in_units(pending['bytes'])}")
        return pending


def _queue_takes(instance: Json, drafts: list[Draft]) -> int:
    """How many of these an empty queue takes; the recipient's limits are the instance's."""
    limits = instance["limits"]
    by_bytes = limits["pending_bytes"] // len(drafts[0].ciphertext)
    return max(1, int(min(limits["pending_count"], by_bytes)))


def _span(first: int, last: int, count: int) -> str:
    span = f"part {last:,}" if first == last else f"parts {first:,} to {last:,}"
    return f"{span} of {count:,}"
