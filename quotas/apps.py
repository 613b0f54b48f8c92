from django.apps import AppConfig


class QuotasConfig(AppConfig):
    """Limits, the per-device usage row, rate limits."""

    name = "quotas"
    verbose_name = "Quotas"
