"""Provisioners, made and ended with an audit entry (PROTOCOL section 1).

The audit log learns which provisioner, never its token nor the token's hash.
"""

from datetime import datetime

from django.db import IntegrityError

from adminui.services.audit import audit_write
from config.kernel.database import durable_transaction
from relay.services import provisioners
from relay.services.provisioners import IssuedProvisioner, name_is_taken


def provisioner_create(*, actor: str, name: str) -> IssuedProvisioner:
    """Make a provisioner; its token is in the result and nowhere else.

    Raises ProvisionerError when the name is taken or not usable.
    """
    try:
        with durable_transaction():
            issued = provisioners.provisioner_create(name=name)
            _tell(actor, "provisioner.create", issued)
    except IntegrityError as error:  # made by another between the look and the insert
        raise name_is_taken(name) from error
    return issued


def provisioner_rotate(*, actor: str, name: str) -> IssuedProvisioner:
    """Give a new token; the old one stops within 5 s.

    Raises ProvisionerError for a name that is not known or revoked.
    """
    with durable_transaction():
        issued = provisioners.provisioner_rotate(name=name)
        _tell(actor, "provisioner.rotate", issued)
    return issued


def provisioner_revoke(*, actor: str, name: str) -> datetime:
    """End a provisioner for good; its token stops within 5 s. Returns the moment.

    Raises ProvisionerError for a name that is not known or revoked.
    """
    with durable_transaction():
        moment = provisioners.provisioner_revoke(name=name)
        audit_write(actor=actor, action="provisioner.revoke", target=name)
    return moment


def _tell(actor: str, action: str, issued: IssuedProvisioner) -> None:
    audit_write(
        actor=actor,
        action=action,
        target=issued.name,
        after={"provisioner_id": str(issued.provisioner_id)},
    )
