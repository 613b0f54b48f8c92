"""Figures that are read from the database when Prometheus asks.

Each follows an index to its first row; none counts a large table.
"""

from collections.abc import Iterator

from prometheus_client.core import CollectorRegistry, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from config.kernel import clock
from outbox.models import SweepRun
from relay.expiry import due_at
from relay.models import Envelope


class _Gauges(Collector):
    def collect(self) -> Iterator[Metric]:
        now = clock.read()
        overdue = Envelope.objects.filter(due_at(now)).order_by("expires_at")
        first = overdue.values_list("expires_at", flat=True).first()
        yield _age("relay_oldest_overdue_expiry_seconds", "Lag of the expiry sweep", now, first)
        bodies = Envelope.objects.filter(cleanup_after__lte=now, cleaned_at__isnull=True)
        first = bodies.order_by("cleanup_after").values_list("cleanup_after", flat=True).first()
        yield _age("relay_oldest_ended_body_seconds", "Lag of the body sweep", now, first)
        succeeded = GaugeMetricFamily(
            "relay_sweep_last_success_seconds", "Age of each sweep's last success", labels=["sweep"]
        )
        for run in SweepRun.objects.all():
            if run.succeeded_at is not None:
                succeeded.add_metric([run.name], (now - run.succeeded_at).total_seconds())
        yield succeeded


def _age(name, text, now, moment) -> GaugeMetricFamily:  # type: ignore[no-untyped-def]
    seconds = 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
    return GaugeMetricFamily(name, text, value=seconds)


GAUGES = CollectorRegistry(auto_describe=False)
GAUGES.register(_Gauges())
