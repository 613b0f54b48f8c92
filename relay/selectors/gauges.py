"""Figures that are read from the database when Prometheus asks.

Each follows an index to its first row; none counts a large table.
"""

from collections.abc import Iterator
from datetime import datetime

from prometheus_client.core import CollectorRegistry, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from config.kernel import clock, sql
from outbox import heartbeats
from outbox import selectors as outbox
from outbox.models import SweepRun
from relay.expiry import due_at
from relay.models import Envelope

_HELD_XMIN = """
SELECT COALESCE(EXTRACT(epoch FROM clock_timestamp() - min(xact_start)), 0) AS seconds
  FROM pg_stat_activity
 WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
"""


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
        yield from _outbox(now)
        yield _held_xmin()


def _outbox(now: datetime) -> Iterator[Metric]:
    oldest = GaugeMetricFamily(
        "relay_outbox_oldest_due_seconds", "How long events wait to be claimed", labels=["topic"]
    )
    for topic, seconds in outbox.oldest_due_seconds(now=now).items():
        oldest.add_metric([topic], seconds)
    dead = GaugeMetricFamily("relay_outbox_dead_events", "Dead letters", labels=["topic"])
    for topic, count in outbox.dead_by_topic().items():
        dead.add_metric([topic], count)
    alive = GaugeMetricFamily("relay_processes_alive", "Heartbeats", labels=["process"])
    for name in heartbeats.PROCESSES:
        alive.add_metric([name], heartbeats.alive(name=name))
    yield from (oldest, dead, alive)


def _held_xmin() -> Metric:
    """What keeps vacuum from queue tables (PgQue#80): an old transaction, whoever's it is."""
    [row] = sql.rows(_HELD_XMIN, {})
    text = "Age of the oldest transaction that holds back vacuum"
    return GaugeMetricFamily("relay_oldest_xmin_seconds", text, value=float(row["seconds"]))


def _age(name, text, now, moment) -> GaugeMetricFamily:  # type: ignore[no-untyped-def]
    seconds = 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
    return GaugeMetricFamily(name, text, value=seconds)


GAUGES = CollectorRegistry(auto_describe=False)
GAUGES.register(_Gauges())
