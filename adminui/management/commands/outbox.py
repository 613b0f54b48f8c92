"""`manage.py outbox`: how the outbox does, and what becomes of dead letters."""

from adminui.management.outbox import add_choice, chosen_by, letters_table, status_tables
from adminui.services import outbox as services
from adminui.services.policies import PolicyRefused
from config.commands import CommandGroup, Options, counted, operator
from outbox.selectors import outbox_status


class Command(CommandGroup):
    help = "Show how the outbox does, and requeue or discard its dead letters."
    refusals = (services.OutboxRefused, PolicyRefused)

    def add_actions(self) -> None:
        self.action(
            "status", self.status, help="Print depths by topic, why events wait, who is alive."
        )
        requeue = self.action(
            "requeue", self.requeue, help="Make dead events due again, as if they had not failed."
        )
        discard = self.action(
            "discard", self.discard, help="Show dead events; with --for-real, delete them for good."
        )
        discard.add_argument("--for-real", action="store_true", help="do it, not only show it")
        add_choice(requeue, needs_reason=True)
        add_choice(discard, needs_reason=False)

    def status(self, options: Options) -> None:
        status = outbox_status()
        self.print(status_tables(status), status)

    def requeue(self, options: Options) -> None:
        self._decide(services.outbox_requeue, options, "due again")

    def discard(self, options: Options) -> None:
        if options["for_real"]:
            return self._decide(services.outbox_discard, options, "deleted")
        preview = services.outbox_preview(chosen=chosen_by(options))
        self.print(letters_table(preview), preview)
        return self.note("This was a look. Pass --for-real and --reason to delete them.")

    def _decide(self, decide: services.Decide, options: Options, what: str) -> None:
        made = decide(actor=operator(), reason=options["reason"], chosen=chosen_by(options))
        self.print(
            f"{counted(made.events, 'event')} {what}; audit entry {made.audit.id}.",
            {"events": made.events, "audit_entry": made.audit.id},
        )
