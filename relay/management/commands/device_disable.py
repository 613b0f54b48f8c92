"""`manage.py device_disable`: end a device, after a look at what that removes."""

from typing import Any
from uuid import UUID

from config.commands import Refused, RelayCommand, counted
from relay.selectors.device import device_is_disabled, device_view
from relay.services.devices import device_disable_by_operator


class Command(RelayCommand):
    help = (
        "Disable a device: its token stops, nobody can submit to it, and its pending mail is "
        "removed. Without --for-real it only shows what would be removed."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("device_id", type=UUID, help="the device's full id")
        parser.add_argument("--for-real", action="store_true", help="do it")

    def handle(self, *args: Any, **options: Any) -> None:
        device_id: UUID = options["device_id"]
        view = device_view(device_id=device_id)
        if view is None:
            raise Refused(
                "There is no device with this id; a disabled one goes with its last receipt."
            )
        was_disabled = device_is_disabled(device_id=device_id)
        if options["for_real"] and not was_disabled:
            device_disable_by_operator(device_id=device_id)
        pending = {"count": view.pending_count, "bytes": view.pending_bytes}
        size = f"{counted(view.pending_count, 'pending envelope')} ({view.pending_bytes:,} bytes)"
        if was_disabled:
            text = f"It is disabled already. {size} left to remove."
        elif options["for_real"]:
            text = f"Disabled. {size} will be removed within the hour."
        else:
            text = f"This would remove {size}. Pass --for-real to disable the device."
        done = was_disabled or bool(options["for_real"])
        self.print(text, {"device_id": device_id, "disabled": done, "pending": pending})
