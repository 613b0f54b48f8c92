"""Which shard a row of a hot table lives in (DESIGN section 3).

Every statement that locks or changes a hot table names one shard by equality, so that the
same code runs unchanged on tables distributed by `shard`.
"""

from binascii import crc32
from uuid import UUID

from django.conf import settings
from django.db.models import Model, QuerySet


def shard_of_device(device_id: UUID) -> int:
    """The shard of a device's queue: CRC-32 of the id's 16 bytes, modulo the shards."""
    return crc32(device_id.bytes) % int(settings.RELAY_SHARDS)


def shard_of_hash(digest: bytes) -> int:
    """The shard of a row that is keyed by a hash."""
    return crc32(digest) % int(settings.RELAY_SHARDS)


def all_shards() -> range:
    """Every shard of this instance."""
    return range(int(settings.RELAY_SHARDS))


def shards_where(rows: QuerySet[Model]) -> list[int]:
    """The shards in which there are such rows.

    One probe a shard: each follows an index that begins with `shard` to its first row. A
    DISTINCT over all shards would read every entry of that index, due or not.
    """
    return [shard for shard in all_shards() if rows.filter(shard=shard).exists()]
