"""`manage.py retention`: how long mail and receipts are kept."""

from dataclasses import asdict

from adminui import policies
from adminui.management import policies as shared
from adminui.selectors.policies import retention_in_force, retention_settings
from adminui.services.policies import PolicyMistaken, PolicyRefused
from adminui.services.retention import retention_set
from config.commands import CommandGroup, Options, operator

_NAMES = tuple(setting.name for setting in policies.RETENTION)


class Command(CommandGroup):
    help = "Show or change how long mail and receipts are kept."
    refusals = (PolicyRefused,)
    mistakes = (PolicyMistaken,)

    def add_actions(self) -> None:
        self.action("show", self.show, help="Print the retention in force and its bounds.")
        parser = self.action("set", self.set, help="Write a new version.", more=shared.MORE)
        shared.add_settings(parser, policies.RETENTION)

    def show(self, options: Options) -> None:
        policy = retention_in_force()
        self.print(shared.policy_table(policy), policy.document())

    def set(self, options: Options) -> None:
        changes = shared.changes_of(options, _NAMES)
        made = retention_set(actor=operator(), reason=options["reason"], changes=changes)
        before, after = retention_settings(made.before), retention_settings(made.after)
        human = shared.changes_table(f"Retention, version {made.after.version}", before, after)
        self.print(human, {**asdict(made.after), "audit_entry": made.audit.id})
