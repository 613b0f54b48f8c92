"""How `outbox` is told which dead letters, and how it shows them."""

from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from rich.console import Group, RenderableType
from rich.table import Table

from adminui.services.outbox import Preview
from config.commands import Options, counted, in_minutes, table
from outbox.selectors import OutboxStatus, ProcessHealth, Reason
from outbox.services.dead import Chosen

_DEPTHS = ("Due", "Waiting", "Published", "Dead", "Oldest due (s)", "Finished (1 min)")


def add_choice(parser: CommandParser, *, needs_reason: bool) -> None:
    """One event or a whole topic, and the reason; to look at them none is needed."""
    parser.add_argument("event_id", nargs="?", help="the event's full id")
    parser.add_argument("--all", action="store_true", help="every dead event of --topic")
    parser.add_argument("--topic", metavar="TOPIC", help="with --all: of this topic")
    parser.add_argument(
        "--reason",
        required=needs_reason,
        default="",
        metavar="TEXT",
        help=f"why, for the audit log (required{'' if needs_reason else ' with --for-real'})",
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
    title = f"{counted(preview.events, 'dead event')} would be deleted; the oldest:"
    return table(columns, rows, title=title, numbers=("Failures", "Starts"))


def status_tables(status: OutboxStatus) -> RenderableType:
    """Depths by topic, why events wait or died, and who is alive."""
    parts = [_depths_table(status), _processes_table(status.processes)]
    if status.reasons:
        parts.insert(1, _reasons_table(status.reasons))
    return Group(*parts)


def _reasons_table(reasons: list[Reason]) -> Table:
    rows = [
        [
            *(each.topic, "dead" if each.dead else "comes again", each.code, each.events),
            in_minutes(each.oldest_created_at),
        ]
        for each in reasons
    ]
    return table(("Topic", "State", "Last error", "Events", "Oldest"), rows, numbers=("Events",))


def _processes_table(processes: list[ProcessHealth]) -> Table:
    rows = [
        [
            *(each.name, each.alive or "nobody"),
            "" if each.last_beat_seconds is None else f"{each.last_beat_seconds:.0f}",
        ]
        for each in processes
    ]
    columns = ("Process", "Alive", "Last sign (s ago)")
    return table(columns, rows, numbers=columns[1:])


def _depths_table(status: OutboxStatus) -> Table:
    rows = [
        [
            *(each.topic, each.due, each.waiting, each.published, each.dead),
            *(f"{each.oldest_due_seconds:.1f}", each.finished),
            "" if each.handled_here else "nobody here handles it",
        ]
        for each in status.topics
    ]
    return table(("Topic", *_DEPTHS, ""), rows, numbers=_DEPTHS)
