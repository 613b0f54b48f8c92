from django.apps import AppConfig


class RelayConfig(AppConfig):
    """Devices, envelopes, retention, and the REST face."""

    name = "relay"
    verbose_name = "Relay"

    def ready(self) -> None:
        from outbox.topics import Topic, register
        from relay.startup import ShardsCheck, check_keys, check_wakes
        from relay.wakes.handler import handle

        check_keys()
        check_wakes()
        ShardsCheck().watch()
        register(Topic("wake", queue="wake", handler=handle))
