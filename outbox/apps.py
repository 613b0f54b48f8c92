from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """Events on their way out, and the machinery of background processes."""

    name = "outbox"
    verbose_name = "Outbox"
