"""The console's forms for accounts: how they are made, changed, and signed in with."""

import logging
from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import UserChangeForm, UserCreationForm
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from adminui.services.admins import LAST_OWNER, owners_locked, sign_in_audit
from config.kernel import logs

#: Whose it was stays out: what was typed as a name may be a password, or anybody's.
SIGN_IN_REFUSED = logs.event("console.sign_in_refused", "request_id", level=logging.WARNING)


class NewAdminForm(UserCreationForm):
    """Makes an admin like `manage.py admin create`: one who may do everything."""

    def save(self, commit: bool = True) -> User:
        """With the rights set before anything is written."""
        self.instance.is_staff = self.instance.is_superuser = True
        return super().save(commit)


class AdminAccountForm(UserChangeForm):
    """Changes an account, but locks nobody out of the console altogether."""

    acting_pk: int | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        helps = {
            "is_active": "May sign in. Unticked, the account stays for the audit log's sake.",
            "is_superuser": "May do everything. Unticked, signing in shows nothing.",
        }
        for name, text in helps.items():
            if name in self.fields:
                self.fields[name].help_text = text

    def clean(self) -> dict[str, Any] | None:
        """Django's page is in a transaction: the owners stay locked until it is saved."""
        cleaned = super().clean() or {}
        if cleaned.get("is_active", True) and cleaned.get("is_superuser", True):
            return cleaned
        if self.instance.pk == self.acting_pk:
            raise ValidationError("Your own rights are another admin's to end.")
        if owners_locked() == {self.instance.pk}:
            raise ValidationError(f"{self.instance.username} {LAST_OWNER}")
        return cleaned


class SignInForm(AdminAuthenticationForm):
    """Signs in, and tells: a success the audit log, a failure the log."""

    def clean(self) -> dict[str, Any]:
        """Failures stay out of the audit log, which anybody could fill with them."""
        try:
            return super().clean()
        except ValidationError:
            SIGN_IN_REFUSED(request_id=getattr(self.request, "relay_request_id", ""))
            raise

    def confirm_login_allowed(self, user: User) -> None:
        """No sign-in without its audit entry."""
        super().confirm_login_allowed(user)
        sign_in_audit(username=user.get_username())
