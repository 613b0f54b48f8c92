"""`manage.py provisioner`: the credentials of the deployment's identity service."""

from adminui.selectors.provisioners import ProvisionerView, provisioners
from adminui.services import provisioners as services
from config.commands import CommandGroup, Options, in_minutes, operator, table
from relay.services.provisioners import IssuedProvisioner, ProvisionerError, ProvisionerNameInvalid

_COLUMNS = ("Name", "Provisioner", "State", "Created", "Changed")


def _cells(entry: ProvisionerView) -> tuple[str, ...]:
    last = entry.revoked_at or entry.rotated_at
    moments = (in_minutes(entry.created_at), in_minutes(last))
    return (entry.name, str(entry.provisioner_id), entry.state, *moments)


class Command(CommandGroup):
    help = "Make, list, rotate and revoke the tokens of identity services."
    refusals = (ProvisionerError,)
    mistakes = (ProvisionerNameInvalid,)

    def add_actions(self) -> None:
        self.action("list", self.list, help="Print every provisioner; never a token.")
        for name, run, text in (
            ("create", self.create, "Make a provisioner and print its token, this once."),
            ("rotate", self.rotate, "Print a new token; the old one stops within 5 seconds."),
            ("revoke", self.revoke, "End a provisioner for good, within 5 seconds."),
        ):
            parser = self.action(name, run, help=text)
            parser.add_argument("--name", required=True, help="1 to 100 characters")

    def list(self, options: Options) -> None:
        found = provisioners()
        human = table(_COLUMNS, [_cells(entry) for entry in found]) if found else "None yet."
        self.print(human, [entry.document() for entry in found])

    def create(self, options: Options) -> None:
        self._show(services.provisioner_create(actor=operator(), name=options["name"]))

    def rotate(self, options: Options) -> None:
        self._show(services.provisioner_rotate(actor=operator(), name=options["name"]))

    def revoke(self, options: Options) -> None:
        name = options["name"]
        moment = services.provisioner_revoke(actor=operator(), name=name)
        self.print(f"{name} is revoked.", {"name": name, "revoked_at": moment})

    def _show(self, issued: IssuedProvisioner) -> None:
        self.print(issued.token, issued)
        self.note("Keep the token: the relay stores only its hash and cannot show it again.")
