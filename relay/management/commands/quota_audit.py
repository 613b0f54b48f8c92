"""`manage.py quota_audit`: do the usage rows tell the truth?"""

import sys
from typing import Any

from config.commands import Mistaken, RelayCommand, table
from relay.services.quota_audit import Drift, quota_audit


class Command(RelayCommand):
    help = (
        "Compare every usage row with the sums over its envelopes, and its clock with the "
        "database's. Exit code 1 when something is wrong and stays so. --repair shows what it "
        "would mend, --repair --for-real mends it."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--repair", action="store_true", help="show what would be mended")
        parser.add_argument("--for-real", action="store_true", help="with --repair: mend it")

    def handle(self, *args: Any, **options: Any) -> None:
        for_real = options["for_real"]
        if for_real and not options["repair"]:
            raise Mistaken("--for-real goes with --repair: only that changes something.")
        found = list(quota_audit(repair=for_real))
        self.print(_report(found, for_real), {"drifted": found})
        if found and options["repair"] and not for_real:
            self.note("This was a look. Pass --repair --for-real to mend it.")
        if found and not options["repair"]:
            sys.exit(1)


def _report(found: list[Drift], for_real: bool) -> Any:
    if not found:
        return "Every usage row is right."
    rows = [
        (
            drift.device,
            drift.shard,
            f"{drift.counted.count} / {drift.counted.bytes}",
            f"{drift.true.count} / {drift.true.bytes}",
            f"{drift.seconds_ahead:.0f}" if drift.seconds_ahead else "",
        )
        for drift in found
    ]
    columns = ["device (today)", "shard", "counted / bytes", "true / bytes", "seconds ahead"]
    title = "Mended" if for_real else "Not right"
    return table(columns, rows, title=title, numbers=columns[1:])
