"""`manage.py createsuperuser`: Django's, which the audit log would not learn of."""

from adminui.management.admins import StandsInTheWay


class Command(StandsInTheWay):
    help = "Refuse: `admin create` does this, with an entry in the audit log."
    instead = "admin create --username NAME"
