"""`manage.py changepassword`: Django's, which the audit log would not learn of."""

from adminui.management.admins import StandsInTheWay


class Command(StandsInTheWay):
    help = "Refuse: `admin reset-password` does this, with an entry in the audit log."
    instead = "admin reset-password --username NAME"
