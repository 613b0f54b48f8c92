"""`manage.py outbox`: how the outbox does, and what becomes of dead letters."""

from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from rich.table import Table

from adminui.services.outbox import (
    Decided,
    OutboxRefused,
    Preview,
    outbox_discard,
    outbox_preview,
    outbox_requeue,
)
from adminui.services.policies import PolicyRefused
from config.commands import CommandGroup, Options, in_minutes, operator, table
from outbox.selectors import OutboxStatus, outbox_status
from outbox.services.dead import Chosen

_NUMBERS = ("Due", "Waiting", "Published", "Dead", "Oldest due (s)", "Finished (1 min)")


class Command(CommandGroup):
    help = "Show how the outbox does, and requeue or discard its dead letters."
    refusals = (OutboxRefused, PolicyRefused)

    def add_actions(self) -> None:
        self.action("status", self.status, help="Print depths by topic, and who is alive.")
        requeue = self.action(
            "requeue", self.requeue, help="Make dead events due again, as if they had not failed."
        )
        discard = self.action("discard", self.discard, help="Delete dead events for good.")
        discard.add_argument("--for-real", action="store_true", help="do it, not only show it")
        for parser in (requeue, discard):
            _add_choice(parser)

    def status(self, options: Options) -> None:
        status = outbox_status()
        self.print(_depths(status), status)
        if not self._options.get("json"):
            self.print(_processes(status), None)

    def requeue(self, options: Options) -> None:
        chosen = _chosen(options)
        made = outbox_requeue(actor=operator(), reason=options["reason"], chosen=chosen)
        self._show(made, "due again")

    def discard(self, options: Options) -> None:
        chosen = _chosen(options)
        if options["for_real"]:
            made = outbox_discard(actor=operator(), reason=options["reason"], chosen=chosen)
            self._show(made, "deleted")
            return
        preview = outbox_preview(chosen=chosen)
        self.print(_letters(preview), preview)
        self.note("This was a look. Pass --for-real to delete them.")

    def _show(self, made: Decided, what: str) -> None:
        self.print(
            f"{made.events} events {what}; audit entry {made.audit.id}.",
            {"events": made.events, "audit_entry": made.audit.id},
        )


def _add_choice(parser: CommandParser) -> None:
    parser.add_argument("event_id", nargs="?", type=UUID, help="the event's full id")
    parser.add_argument("--all", action="store_true", help="every dead event of --topic")
    parser.add_argument("--topic", metavar="TOPIC", help="with --all: of this topic")
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why, for the audit log (required)"
    )


def _chosen(options: Options) -> Chosen:
    event_id, topic = options["event_id"], options["topic"]
    if (event_id is None) == (topic is None) or options["all"] != (topic is not None):
        raise CommandError("Name one event, or pass --all with --topic.", returncode=2)
    return Chosen(event_id=event_id, topic=topic)


def _letters(preview: Preview) -> Table:
    rows = [
        [
            *(each.event_id, each.topic, each.kind, in_minutes(each.created_at)),
            *(each.failures, each.starts, each.last_error),
        ]
        for each in preview.oldest
    ]
    columns = ("Event", "Topic", "Kind", "Since", "Failures", "Starts", "Last error")
    title = f"{preview.events} dead events would be deleted; the oldest:"
    return table(columns, rows, title=title, numbers=("Failures", "Starts"))


def _depths(status: OutboxStatus) -> Table:
    rows = [
        [
            *(each.topic, each.due, each.waiting, each.published, each.dead),
            *(f"{each.oldest_due_seconds:.1f}", each.finished),
            "" if each.handled_here else "nobody here handles it",
        ]
        for each in status.topics
    ]
    return table(("Topic", *_NUMBERS, ""), rows, numbers=_NUMBERS)


def _processes(status: OutboxStatus) -> Table:
    rows = [(each.name, each.alive, _ago(each.last_beat_seconds)) for each in status.processes]
    return table(("Process", "Alive", "Last beat"), rows, numbers=("Alive",))


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s ago"
