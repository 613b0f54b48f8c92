from django.apps import AppConfig


class ConfigConfig(AppConfig):
    """The kernel as an app: the database's clock function, and the `up` command."""

    name = "config"
    verbose_name = "Relay kernel"
