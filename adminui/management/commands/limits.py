"""`manage.py limits`: how much the relay takes, and how fast."""

from dataclasses import asdict

from adminui import policies
from adminui.management import policies as shared
from adminui.selectors.policies import limits_in_force, limits_settings
from adminui.services.limits import limits_set
from adminui.services.policies import PolicyMistaken, PolicyRefused
from config.commands import CommandGroup, Options, operator

_NAMES = (*(setting.name for setting in policies.LIMITS), policies.PROTOCOL_VERSIONS)


class Command(CommandGroup):
    help = "Show or change the limits on sizes, queues and rates."
    refusals = (PolicyRefused,)
    mistakes = (PolicyMistaken,)

    def add_actions(self) -> None:
        self.action("show", self.show, help="Print the limits in force and their bounds.")
        parser = self.action("set", self.set, help="Write a new version.", more=shared.MORE)
        shared.add_settings(parser, policies.LIMITS)
        parser.add_argument(
            policies.option(policies.PROTOCOL_VERSIONS),
            type=shared.versions,
            default=shared.NOT_GIVEN,
            metavar="N,N",
            help=f"{policies.PROTOCOL_VERSIONS_LABEL}: {policies.PROTOCOL_VERSIONS_ALLOWED}",
        )

    def show(self, options: Options) -> None:
        policy = limits_in_force()
        self.print(shared.policy_table(policy), policy.document())

    def set(self, options: Options) -> None:
        changes = shared.changes_of(options, _NAMES)
        made = limits_set(actor=operator(), reason=options["reason"], changes=changes)
        before, after = limits_settings(made.before), limits_settings(made.after)
        human = shared.changes_table(f"Limits, version {made.after.version}", before, after)
        self.print(human, {**asdict(made.after), "audit_entry": made.audit.id})
