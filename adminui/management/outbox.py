"""How `outbox` is told which dead letters, and how it shows them."""

from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from rich.table import Table

from adminui.services.outbox import Preview
from config.commands import Options, in_minutes, table
from outbox.selectors import OutboxStatus
from outbox.services.dead import Chosen

_DEPTHS = ("Due", "Waiting", "Published", "Dead", "Oldest due (s)", "Finished (1 min)")


def add_choice(parser: CommandParser) -> None:
    """One event or a whole topic, and the reason."""
    parser.add_argument("event_id", nargs="?", help="the event's full id")
    parser.add_argument("--all", action="store_true", help="every dead event of --topic")
    parser.add_argument("--topic", metavar="TOPIC", help="with --all: of this topic")
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why, for the audit log (required)"
    )


def chosen_by(options: Options) -> Chosen:
    """What the command line names; nothing at all, or both, is a mistake."""
    event_id, topic = options["event_id"], options["topic"]
    if (event_id is None) == (topic is None) or options["all"] != (topic is not None):
        raise CommandError("Name one event, or pass --all with --topic.", returncode=2)
    try:
        return Chosen(event_id=None if event_id is None else UUID(event_id), topic=topic)
    except ValueError as error:
        raise CommandError(f"{event_id!r} is not an event's id.", returncode=2) from error


def letters_table(preview: Preview) -> Table:
    """Dead letters before they are deleted."""
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


def status_table(status: OutboxStatus) -> Table:
    """Depths by topic."""
    rows = [
        [
            *(each.topic, each.due, each.waiting, each.published, each.dead),
            *(f"{each.oldest_due_seconds:.1f}", each.finished),
            "" if each.handled_here else "nobody here handles it",
        ]
        for each in status.topics
    ]
    note = ", ".join(
        f"{process.name}: {process.alive or 'nobody'} alive" for process in status.processes
    )
    return table(("Topic", *_DEPTHS, ""), rows, note=note, numbers=_DEPTHS)
