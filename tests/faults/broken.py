"""Builds that are broken on purpose, for the oracle to fail (FAULTS).

Each is a copy of this process whose relay was changed in one place; the sound build is the same
copy unchanged. Two more, a cursor on a sequence and a counter without the lock, are in
tests/concurrency/broken.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.transaction import set_rollback

from config.kernel.database import durable_transaction
from outbox.models import Event
from outbox.services import handling
from outbox.services.batches import Delivery
from outbox.services.settling import Settled
from outbox.topics import EventRef, Topic
from relay.services import once


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """A name of a module means something else, for the length of the block."""
    former = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, former)


def deletes_before_the_handler() -> Any:
    """Events are deleted when their batch starts, as with a queue that has no acknowledgement."""
    sound: Callable[[Delivery, Topic], list[EventRef]] = handling._start

    def start(delivery: Delivery, topic: Topic) -> list[EventRef]:
        events = sound(delivery, topic)
        for shard, event_ids in delivery.events.items():
            Event.objects.filter(shard=shard, event_id__in=event_ids).delete()
        return events

    return replaced(handling, "_start", start)


def takes_the_lowest_ids_too() -> Any:
    """Settling deletes every event up to the highest id of the batch (`id <= max`)."""
    sound: Callable[..., Settled] = handling.settle

    def settle(delivery: Delivery, events: Sequence[EventRef], said: Any, **how: Any) -> Settled:
        highest: UUID = max(event.event_id for event in events)
        Event.objects.filter(event_id__lte=highest).delete()
        return sound(delivery, events, said, **how)

    return replaced(handling, "settle", settle)


def keeps_its_keys_apart() -> Any:
    """The key is claimed in a transaction of its own, before the one of its effect."""
    sound = once._claim

    def claim(hashed: bytes | None, fingerprint: bytes) -> Any:
        owned = sound(hashed, fingerprint)
        connection.connection.commit()  # past Django, which would refuse
        return owned

    return replaced(once, "_claim", claim)


def answers_before_it_commits() -> Any:
    """The 201 goes out whatever becomes of the transaction."""
    sound = durable_transaction

    @contextmanager
    def transaction() -> Iterator[None]:
        with sound():
            yield
            set_rollback(True)

    return replaced(once, "durable_transaction", transaction)
