"""`manage.py admin`: the accounts that may use the console."""

from adminui.services.admins import AdminError, IssuedAdmin, admin_create, admin_reset_password
from config.commands import CommandGroup, Options, operator, table


class Command(CommandGroup):
    help = "Make admins of the console, and give them new passwords."
    refusals = (AdminError,)

    def add_actions(self) -> None:
        create = self.action(
            "create", self.create, help="Make an admin and print the password, this once."
        )
        create.add_argument("--email", default="", help="where the admin can be reached")
        reset = self.action(
            "reset-password", self.reset_password, help="Print a new password; sessions end."
        )
        for parser in (create, reset):
            parser.add_argument("--username", required=True, help="letters, digits and @.+-_")

    def create(self, options: Options) -> None:
        username, email = options["username"], options["email"]
        self._show(admin_create(actor=operator(), username=username, email=email))

    def reset_password(self, options: Options) -> None:
        self._show(admin_reset_password(actor=operator(), username=options["username"]))

    def _show(self, issued: IssuedAdmin) -> None:
        self.print(table(("Username", "Password"), [(issued.username, issued.password)]), issued)
        self.note("Keep the password: the relay stores only its hash and cannot show it again.")
