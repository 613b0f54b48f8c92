"""The accounts that may use the console."""

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from django.contrib.auth.hashers import check_password, make_password
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError

from adminui.services.audit import audit_write
from config.kernel import clock
from config.kernel.database import durable_transaction

_PASSWORD_BYTES = 24  # 32 characters of base64url


class AdminError(Exception):
    """Why an admin could not be made or changed, in words for an operator."""


class AdminInvalid(AdminError):  # noqa: N818 - what is wrong, as elsewhere
    """No admin can have this name or address."""


class Role(StrEnum):
    """What an admin may do."""

    OWNER = "owner"  # everything


@dataclass(frozen=True)
class IssuedAdmin:
    """An admin and the password, which is shown this once."""

    username: str
    password: str = field(repr=False)


def admin_create(
    *, actor: str, username: str, email: str = "", role: Role = Role.OWNER
) -> IssuedAdmin:
    """Make an admin with a generated password.

    Raises AdminError when the name is taken, in whatever case of letters, or not usable.
    """
    issued = IssuedAdmin(_checked_username(username), secrets.token_urlsafe(_PASSWORD_BYTES))
    user = User(
        username=issued.username,
        email=_checked_email(email),
        password=make_password(issued.password),  # slow on purpose: before the transaction
        is_staff=True,
        is_superuser=role is Role.OWNER,
    )
    try:
        with durable_transaction():
            if User.objects.filter(username__iexact=issued.username).exists():
                raise AdminError(f"An admin named {issued.username} exists.")
            user.date_joined = clock.read()
            user.save(force_insert=True)
            audit_write(
                actor=actor,
                action="admin.create",
                target=issued.username,
                after={"role": str(role)},
            )
    except IntegrityError as error:  # made by another between the look and the insert
        raise AdminError(f"An admin named {issued.username} exists.") from error
    return issued


def admin_reset_password(*, actor: str, username: str) -> IssuedAdmin:
    """Give an admin a new generated password; every session of theirs ends with the old one.

    Raises AdminError for a name that is not known, and for an account that is disabled.
    """
    username = _checked_username(username)
    issued = IssuedAdmin(username, secrets.token_urlsafe(_PASSWORD_BYTES))
    encoded = make_password(issued.password)
    with durable_transaction():
        user = _locked(username)
        if not user.is_active:
            raise AdminError(
                f"{username} is disabled and could not sign in: `manage.py admin enable` first."
            )
        User.objects.filter(pk=user.pk).update(password=encoded)
        audit_write(actor=actor, action="admin.reset_password", target=username)
    return issued


class Switch(Protocol):
    """Enable or disable."""

    def __call__(self, *, actor: str, username: str) -> bool: ...


def admin_enable(*, actor: str, username: str) -> bool:
    """Let an account sign in again. False when it could already.

    Raises AdminError for a name that is not known.
    """
    return _switch(actor, username, to_active=True)


def admin_disable(*, actor: str, username: str) -> bool:
    """End an account and its sessions; False when that was so already. Nobody is deleted, as
    the audit log names them.

    Raises AdminError for a name that is not known, and for the last who may do everything.
    """
    return _switch(actor, username, to_active=False)


def _switch(actor: str, username: str, *, to_active: bool) -> bool:
    username = _checked_username(username)
    with durable_transaction():
        owners = owners_locked()
        user = _locked(username)
        if user.is_active == to_active:
            return False
        if owners == {user.pk}:
            raise AdminError(f"{username} {LAST_OWNER}")
        User.objects.filter(pk=user.pk).update(is_active=to_active)
        audit_write(
            actor=actor,
            action="admin.enable" if to_active else "admin.disable",
            target=username,
            before={"is_active": user.is_active},
            after={"is_active": to_active},
        )
    return True


#: Why an account may not lose its rights.
LAST_OWNER = "is the last who may do everything: make another first."


def owners_locked() -> set[int]:
    """The accounts that may do everything, locked before any other and in one order: of two
    that end each other at once, one waits and sees what the other did."""
    owners = User.objects.select_for_update(no_key=True).filter(is_active=True, is_superuser=True)
    return set(owners.order_by("pk").values_list("pk", flat=True))


def sign_in_audit(*, username: str) -> None:
    """Tell the audit log that somebody signed in to the console."""
    with durable_transaction():
        audit_write(actor=f"admin:{username}"[:150], action="admin.sign_in", target=username)


def admin_password_holds(*, username: str, password: str) -> bool:
    """Whether this account could sign in with this password now."""
    user = User.objects.filter(username=User.normalize_username(username)).first()
    if user is None or not user.is_active or not user.is_staff:
        return False
    return check_password(password, user.password)


def _locked(username: str) -> User:
    user = User.objects.select_for_update(no_key=True).filter(username=username).first()
    if user is None:
        raise AdminError(f"There is no admin named {username}.")
    return user


def _checked_username(username: str) -> str:
    """In Unicode's composed form, as the login form will look for it."""
    username = User.normalize_username(username)
    try:
        User._meta.get_field("username").clean(username, None)
    except ValidationError as error:
        raise AdminInvalid(
            "A username has 1 to 150 letters, digits and @ . + - _ characters."
        ) from error
    return username


def _checked_email(email: str) -> str:
    if email:
        try:
            validate_email(email)
        except ValidationError as error:
            raise AdminInvalid(f"{email} is not an email address.") from error
    return User.objects.normalize_email(email)
