"""The accounts that may use the console."""

import secrets
from dataclasses import dataclass, field
from enum import StrEnum

from django.contrib.auth.hashers import make_password
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
                raise AdminError(f"an admin named {issued.username} exists")
            user.date_joined = clock.read()
            user.save(force_insert=True)
            audit_write(
                actor=actor,
                action="admin.create",
                target=issued.username,
                after={"role": str(role)},
            )
    except IntegrityError as error:  # made by another between the look and the insert
        raise AdminError(f"an admin named {issued.username} exists") from error
    return issued


def admin_reset_password(*, actor: str, username: str) -> IssuedAdmin:
    """Give an admin a new generated password; every session of theirs ends with the old one.

    Raises AdminError for a name that is not known.
    """
    username = _checked_username(username)
    issued = IssuedAdmin(username, secrets.token_urlsafe(_PASSWORD_BYTES))
    encoded = make_password(issued.password)
    with durable_transaction():
        if not User.objects.filter(username=username).update(password=encoded):
            raise AdminError(f"there is no admin named {username}")
        audit_write(actor=actor, action="admin.reset_password", target=username)
    return issued


def _checked_username(username: str) -> str:
    """In Unicode's composed form, as the login form will look for it."""
    username = User.normalize_username(username)
    try:
        User._meta.get_field("username").clean(username, None)
    except ValidationError as error:
        raise AdminError(
            "a username has 1 to 150 letters, digits and @ . + - _ characters"
        ) from error
    return username


def _checked_email(email: str) -> str:
    if email:
        try:
            validate_email(email)
        except ValidationError as error:
            raise AdminError(f"{email} is not an email address") from error
    return User.objects.normalize_email(email)
