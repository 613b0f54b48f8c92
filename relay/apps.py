from django.apps import AppConfig


class RelayConfig(AppConfig):
    """Devices, envelopes, retention, and the REST face."""

    name = "relay"
    verbose_name = "Relay"

    def ready(self) -> None:
        from relay.startup import ShardsCheck, check_keys

        check_keys()
        ShardsCheck().watch()
