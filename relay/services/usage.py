"""Giving quota back, and recounting a queue whose totals drifted (DESIGN rule 4.6)."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, Sum

from config.kernel import logs, pseudonyms
from quotas import usage as queue
from quotas.models import QueueUsage
from relay.models import Envelope, Outcome

DRIFTED = logs.event("quota.drifted", "device", "shard", level=logging.ERROR)


@dataclass(frozen=True)
class Totals:
    """What a queue really holds: pending envelopes, and their bytes."""

    count: int
    bytes: int


def give_back(*, shard: int, usages: Sequence[QueueUsage], freed: Iterable[queue.Freed]) -> None:
    """Count out what left these locked queues.

    Totals that would fall below zero had drifted: that queue is recounted under its lock, an
    alarm is raised, and the work goes on, since an acknowledgement must not fail for ever.
    """
    drifted = set(queue.give_back(shard=shard, usages=usages, freed=freed))
    for usage in usages:
        if usage.device_id in drifted:
            DRIFTED(device=pseudonyms.of_device(usage.device_id), shard=shard)
            recount(usage=usage)


def recount(*, usage: QueueUsage) -> Totals:
    """Set a locked row's totals to the sums over its envelopes."""
    totals = true_totals(usage=usage)
    queue.set_totals(usage=usage, count=totals.count, size=totals.bytes)
    return totals


def true_totals(*, usage: QueueUsage) -> Totals:
    """The sums over what is pending, flipped or not: what the totals must be."""
    sums = Envelope.objects.filter(
        shard=usage.shard, device_id=usage.device_id, outcome=Outcome.PENDING
    ).aggregate(count=Count("seq"), bytes=Sum("size"))
    return Totals(count=sums["count"], bytes=sums["bytes"] or 0)
