"""`manage.py admin`: the accounts that may use the console."""

from adminui.management.admins import accounts
from adminui.services import admins as services
from config.commands import CommandGroup, Options, operator, table


class Command(CommandGroup):
    help = "Make, list, enable and disable admins of the console, and give them new passwords."
    refusals = (services.AdminError,)
    mistakes = (services.AdminInvalid,)

    def add_actions(self) -> None:
        self.action("list", self.list, help="Print every admin; never a password.")
        for name, run, text in (
            ("create", self.create, "Make an admin and print the password, this once."),
            ("reset-password", self.reset_password, "Print a new password; sessions end."),
            ("disable", self.disable, "End an admin's access and sessions; the last one stays."),
            ("enable", self.enable, "Let a disabled admin sign in again."),
        ):
            parser = self.action(name, run, help=text)
            parser.add_argument("--username", required=True, help="letters, digits and @.+-_")
            if name == "create":
                parser.add_argument("--email", default="", help="where the admin can be reached")

    def list(self, options: Options) -> None:
        self.print(*accounts())

    def create(self, options: Options) -> None:
        made = {"username": options["username"], "email": options["email"]}
        self._show(services.admin_create(actor=operator(), **made))

    def reset_password(self, options: Options) -> None:
        name = options["username"]
        self._show(services.admin_reset_password(actor=operator(), username=name))

    def disable(self, options: Options) -> None:
        self._switch(services.admin_disable, options["username"], "disabled")

    def enable(self, options: Options) -> None:
        self._switch(services.admin_enable, options["username"], "active")

    def _switch(self, switch: services.Switch, name: str, state: str) -> None:
        changed = switch(actor=operator(), username=name)
        facts = {"username": name, "state": state, "changed": changed}
        self.print(f"{name} is {state}{'' if changed else ' already'}.", facts)

    def _show(self, issued: services.IssuedAdmin) -> None:
        self.print(table(("Username", "Password"), [(issued.username, issued.password)]), issued)
        self.note("Keep the password: the relay stores only its hash and cannot show it again.")
