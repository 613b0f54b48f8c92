"""Credentials of the deployment's identity service (PROTOCOL section 1)."""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

from config.kernel import clock
from relay.models import Provisioner
from relay.tokens import new_secret, provisioner_token


class ProvisionerError(Exception):
    """Why a provisioner could not be made or changed, in words for an operator."""


class ProvisionerNameInvalid(ProvisionerError):  # noqa: N818 - what is wrong, as elsewhere
    """No provisioner can have this name."""


@dataclass(frozen=True)
class IssuedProvisioner:
    """A provisioner and its token, which is shown this once."""

    provisioner_id: UUID
    name: str
    token: str = field(repr=False)


def provisioner_create(*, name: str) -> IssuedProvisioner:
    """Make a provisioner. Raises ProvisionerError when the name is taken or not usable."""
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise ProvisionerNameInvalid("A name has 1 to 100 printable characters.")
    taken = Provisioner.objects.filter(name=name).first()
    if taken is not None:
        raise name_is_taken(name, is_revoked=taken.revoked_at is not None)
    secret = new_secret()
    row = Provisioner.objects.create(
        provisioner_id=uuid4(), name=name, token_sha256=secret.sha256, created_at=clock.read()
    )
    return _issued(row, provisioner_token(row.provisioner_id, secret))


def name_is_taken(name: str, *, is_revoked: bool = False) -> ProvisionerError:
    """A name stays taken: the audit log tells by it who did what."""
    if is_revoked:
        return ProvisionerError(
            f"A provisioner named {name} exists; it is revoked, and its name stays taken."
        )
    return ProvisionerError(f"A provisioner named {name} exists.")


def provisioner_rotate(*, name: str) -> IssuedProvisioner:
    """Give a new token; the old one stops within 5 s. Revoked ones cannot be revived."""
    row = _active(name)
    secret = new_secret()
    row.token_sha256 = secret.sha256
    row.rotated_at = clock.read()
    row.save(update_fields=["token_sha256", "rotated_at"])
    return _issued(row, provisioner_token(row.provisioner_id, secret))


def provisioner_revoke(*, name: str) -> datetime:
    """End a provisioner; its token stops within 5 s. Returns the moment."""
    row = _active(name)
    row.revoked_at = clock.read()
    row.save(update_fields=["revoked_at"])
    return row.revoked_at


def _active(name: str) -> Provisioner:
    row = Provisioner.objects.select_for_update(no_key=True).filter(name=name).first()
    if row is None:
        raise ProvisionerError(f"There is no provisioner named {name}.")
    if row.revoked_at is not None:
        raise ProvisionerError(f"The provisioner {name} is revoked.")
    return row


def _issued(row: Provisioner, token: str) -> IssuedProvisioner:
    return IssuedProvisioner(provisioner_id=row.provisioner_id, name=row.name, token=token)
