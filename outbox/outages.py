"""Outages as two lines of the log, one when they begin and one when they end.

A process that tries twice a second would otherwise bury everything else in the log.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Outage:
    """Whether something that a process needs is away, as far as its last try tells."""

    begun: Callable[..., None]
    over: Callable[..., None]
    is_on: bool = False

    def begin(self, **fields: Any) -> None:
        """The last try failed. `fields` are those of the line."""
        if not self.is_on:
            self.is_on = True
            self.begun(**fields)

    def end(self, **fields: Any) -> None:
        """The last try succeeded."""
        if self.is_on:
            self.is_on = False
            self.over(**fields)
