"""Markers: values that must not be seen anywhere, and the search for them (DESIGN rule 4.9)."""

import base64
from uuid import uuid4

from relay.tokens import parse
from tests.client import Party

ADDRESS = "203.0.113.77"


def _unique(name: str) -> str:
    return f"canary-{name}-{uuid4().hex}"


class Markers:
    """Everything that must not appear, in every form in which it might."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {"address": ADDRESS}

    def text(self, name: str) -> str:
        """A marker that is sent as it is."""
        made = _unique(name)
        self.bytes(name, made.encode())
        return made

    def bytes(self, name: str, raw: bytes) -> None:
        """Raw bytes: as text, in base64 (from any offset) and in hexadecimal."""
        self.texts[name] = raw.decode("latin-1")
        self.texts[f"{name} in hex"] = raw.hex()
        for offset in range(3):
            encoded = base64.b64encode(b"\0" * offset + raw).decode()
            self.texts[f"{name} in base64 +{offset}"] = encoded[4:-4]

    def party(self, name: str, party: Party) -> None:
        """A token, its secret and digest, and the id in its text forms."""
        parsed = parse(party.token)
        assert parsed is not None
        self.texts[f"{name}'s token"] = party.token
        self.texts[f"{name}'s secret"] = party.token.rpartition(".")[2]
        self.texts[f"{name}'s digest"] = parsed.sha256.hex()
        self.texts[f"{name}'s id"] = str(party.id)
        self.texts[f"{name}'s id in hex"] = party.id.hex

    def found_in(self, text: str) -> list[str]:
        """Which ones are there."""
        lowered = text.lower()
        return [name for name, marker in self.texts.items() if marker.lower() in lowered]
