from django.apps import AppConfig


class AdminuiConfig(AppConfig):
    """Everything an admin sees, and the audit log."""

    name = "adminui"
    verbose_name = "Console"

    def ready(self) -> None:
        from adminui.security import handle
        from outbox.services.adding import SECURITY
        from outbox.topics import Topic, register

        register(Topic(SECURITY, queue="maintenance", handler=handle))
