"""End-to-end encryption for the demo: what the relay carries and never sees into.

NaCl's Box (X25519, XSalsa20-Poly1305) from the sender's key to the recipient's. It stands in
for a messenger's own protocol, which would have forward secrecy; what it shows is what any
such protocol has to do because a relay stands in the middle:

- Every part says, inside the encryption, for which device it is, of which transfer it is, and
  which of how many. A relay that drops, repeats, reorders or mixes parts is found out.
- Every envelope of a transfer has one size. Sizes stay visible to the relay, so padding is the
  client's task (PROTOCOL section 8).

    format (1 byte) · recipient device (16) · transfer (16) · index (4) · count (4) · content · pad
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from nacl.bindings import sodium_pad, sodium_unpad
from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

_FORMAT = 1
_HEADER = struct.Struct(">B16s16sII")
_MAC_BYTES = 16
_SHORTEST_PAD = 1
#: Bytes that an envelope has on top of a full part's content.
OVERHEAD = Box.NONCE_SIZE + _MAC_BYTES + _HEADER.size + _SHORTEST_PAD


class Tampered(Exception):  # noqa: N818 - a verdict, as the protocol's problems are
    """An envelope that this sender did not make for this recipient, or a transfer with a hole."""


@dataclass(frozen=True)
class Part:
    """One part of a transfer, in the clear. `index` counts from 0."""

    recipient: UUID
    transfer: UUID
    index: int
    count: int
    content: bytes = field(repr=False)


def split(content: bytes, *, recipient: UUID, size: int) -> Iterator[Part]:
    """The parts of a new transfer, `size` bytes each. Empty content is one empty part."""
    transfer, count = uuid4(), max(1, -(-len(content) // size))
    for index in range(count):
        piece = content[index * size : (index + 1) * size]
        yield Part(recipient, transfer, index, count, piece)


def seal(part: Part, *, sender: PrivateKey, recipient: PublicKey, size: int) -> bytes:
    """The ciphertext of a part, padded as if it were `size` bytes long.

    Fresh randomness each time: seal a part once, and keep the ciphertext for every retry.
    """
    header = _HEADER.pack(
        _FORMAT, part.recipient.bytes, part.transfer.bytes, part.index, part.count
    )
    padded = sodium_pad(header + part.content, _HEADER.size + size + _SHORTEST_PAD)
    return bytes(Box(sender, recipient).encrypt(padded))


def unseal(ciphertext: bytes, *, recipient: PrivateKey, sender: PublicKey, device: UUID) -> Part:
    """The part, if `sender` made it for `device`. Raises Tampered.

    The device is checked because a Box opens at both ends: without it the relay could hand a
    sender's own parts back to it.
    """
    try:
        padded = Box(recipient, sender).decrypt(ciphertext)
        plain = sodium_unpad(padded, len(padded))
        version, to, transfer, index, count = _HEADER.unpack_from(plain)
    except (CryptoError, ValueError, struct.error) as error:
        raise Tampered("an envelope was not made by this sender, or was changed") from error
    if version != _FORMAT or to != device.bytes or index >= count:
        raise Tampered("an envelope was made for another device, or in another format")
    return Part(device, UUID(bytes=transfer), index, count, plain[_HEADER.size :])


@dataclass
class Assembly:
    """The parts of one transfer as they come in, in any order."""

    parts: dict[int, Part] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Take a part. Raises Tampered for one of another transfer, or one that was there."""
        first = next(iter(self.parts.values()), part)
        if (part.transfer, part.count) != (first.transfer, first.count):
            raise Tampered("a part belongs to another transfer")
        if part.index in self.parts:
            raise Tampered(f"part {part.index + 1} came twice, under two message ids")
        self.parts[part.index] = part

    def content(self) -> bytes:
        """The whole. Raises Tampered when parts are missing."""
        count = next((part.count for part in self.parts.values()), 0)
        if not count or len(self.parts) < count:
            raise Tampered(f"only {len(self.parts)} of {count or 'all'} parts arrived")
        return b"".join(self.parts[index].content for index in range(count))
