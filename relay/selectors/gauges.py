"""Figures that are read from the database when Prometheus asks.

Each follows an index to its first row, a shard at a time; none counts a large table.
"""

from collections.abc import Iterator
from datetime import datetime

from django.db.models import QuerySet
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from config.kernel import clock, sql
from config.kernel.shards import all_shards
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
        overdue = Envelope.objects.filter(due_at(now))
        yield _age(
            "relay_oldest_overdue_expiry_seconds",
            "How long the oldest envelope whose time is up has been waiting for its expiry",
            now,
            _earliest(overdue, "expires_at"),
        )
        ended = Envelope.objects.filter(cleanup_after__lte=now, cleaned_at__isnull=True)
        yield _age(
            "relay_oldest_ended_body_seconds",
            "How long the oldest ciphertext whose envelope ended has been waiting for removal",
            now,
            _earliest(ended, "cleanup_after"),
        )
        yield _sweeps(now)
        yield from _outbox(now)
        yield _held_xmin()


def _outbox(now: datetime) -> Iterator[Metric]:
    oldest = GaugeMetricFamily(
        "relay_outbox_oldest_due_seconds",
        "How long the oldest due event of a topic has been waiting to be claimed",
        labels=["topic"],
    )
    for topic, seconds in outbox.oldest_due_seconds(now=now).items():
        oldest.add_metric([topic], seconds)
    dead = GaugeMetricFamily("relay_outbox_dead_events", "Dead letters", labels=["topic"])
    for topic, count in outbox.dead_by_topic().items():
        dead.add_metric([topic], count)
    alive = GaugeMetricFamily(
        "relay_processes_alive",
        "Background processes that said within the last minute that they are alive",
        labels=["process"],
    )
    for name in heartbeats.PROCESSES:
        alive.add_metric([name], heartbeats.alive(name=name))
    yield from (oldest, dead, alive)


def _held_xmin() -> Metric:
    """What keeps vacuum from queue tables (PgQue#80): an old transaction, whoever's it is."""
    [row] = sql.rows(_HELD_XMIN, {})
    return GaugeMetricFamily(
        "relay_oldest_xmin_seconds",
        "Age of the oldest transaction that holds back vacuum",
        value=float(row["seconds"]),
    )


def _earliest(rows: QuerySet[Envelope], column: str) -> datetime | None:
    """The earliest moment in `column`; the indexes begin with the shard."""
    found = [
        moment
        for shard in all_shards()
        for moment in rows.filter(shard=shard).order_by(column).values_list(column, flat=True)[:1]
    ]
    return min(found, default=None)


def _age(name: str, text: str, now: datetime, moment: datetime | None) -> Metric:
    seconds = 0.0 if moment is None else max(0.0, (now - moment).total_seconds())
    return GaugeMetricFamily(name, text, value=seconds)


def _sweeps(now: datetime) -> Metric:
    text = "Age of each sweep's last success"
    family = GaugeMetricFamily("relay_sweep_last_success_seconds", text, labels=["sweep"])
    for run in SweepRun.objects.all():
        if run.succeeded_at is not None:
            family.add_metric([run.name], (now - run.succeeded_at).total_seconds())
    return family


GAUGES = CollectorRegistry(auto_describe=False)
GAUGES.register(_Gauges())
