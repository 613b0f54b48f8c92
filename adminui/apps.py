from django.apps import AppConfig


class AdminuiConfig(AppConfig):
    """Everything an admin sees, and the audit log."""

    name = "adminui"
    verbose_name = "Console"
