"""`manage.py credentials_check`: do credentials that somebody remembers still open the doors?"""

import json
import sys
from typing import Any

from adminui.services.admins import admin_password_holds
from config.commands import Mistaken, RelayCommand
from relay.callers import CallerKind
from relay.selectors.credentials import authenticate

_NAMES = {"admin_user", "admin_password", "provisioner_token"}


class Command(RelayCommand):
    help = (
        "Read one JSON object from stdin, with admin_user and admin_password, "
        "provisioner_token, or all three, and say of each whether it still holds. "
        "`manage.py up` asks so before it prints what it remembers."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        asked = self._asked()
        holds: dict[str, bool] = {}
        if "admin_password" in asked:
            username, password = asked.get("admin_user", ""), asked["admin_password"]
            holds["admin"] = admin_password_holds(username=username, password=password)
        if "provisioner_token" in asked:
            caller = authenticate(asked["provisioner_token"])
            holds["provisioner"] = caller is not None and caller.kind is CallerKind.PROVISIONER
        words = [f"{name}: {'holds' if good else 'does not hold'}" for name, good in holds.items()]
        self.print("\n".join(words), holds)

    def _asked(self) -> dict[str, str]:
        try:
            asked = json.load(sys.stdin)
            right = set(asked) <= _NAMES and all(isinstance(text, str) for text in asked.values())
        except (ValueError, TypeError, AttributeError):
            right = False
        if not right:
            raise Mistaken("What comes on stdin is not an object of credentials; see --help.")
        return dict(asked)
