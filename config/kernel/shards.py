"""Which shard a row of a hot table lives in (DESIGN section 3).

Every statement that locks or changes a hot table names one shard by equality, so that the
same code runs unchanged on tables distributed by `shard`.
"""

from binascii import crc32
from uuid import UUID

from django.conf import settings


def shard_of_device(device_id: UUID) -> int:
    """The shard of a device's queue: CRC-32 of the id's 16 bytes, modulo the shards."""
    return crc32(device_id.bytes) % int(settings.RELAY_SHARDS)


def shard_of_hash(digest: bytes) -> int:
    """The shard of a row that is keyed by a hash."""
    return crc32(digest) % int(settings.RELAY_SHARDS)
