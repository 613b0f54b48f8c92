"""A device that walks through its queue while things happen there."""

from typing import Any

from tests.client import Party, RelayClient


class Walk:
    """One walk: from the oldest envelope on, following `next_cursor`, also past empty pages."""

    def __init__(self, relay: RelayClient, device: Party, *, limit: int = 7) -> None:
        self._relay = relay
        self._device = device
        self._query: dict[str, Any] = {"limit": limit}
        self.seen: list[str] = []

    def step(self) -> list[str]:
        """One page: its message ids, in order."""
        answer = self._relay.pull(self._device, **self._query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        ids = [envelope["message_id"] for envelope in page["envelopes"]]
        self.seen += ids
        self._query["cursor"] = page["next_cursor"]
        return ids

    def to_the_end(self) -> None:
        """Until a page is empty."""
        while self.step():
            pass
