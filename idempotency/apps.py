from django.apps import AppConfig


class IdempotencyConfig(AppConfig):
    """Records of what was answered to which key."""

    name = "idempotency"
    verbose_name = "Idempotency"
