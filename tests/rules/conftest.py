"""What the tests of the rules share."""

from collections.abc import Iterator

import pytest

from tests.concurrency.inside import InsideClient
from tests.rules.statement_guard import _statements_are_guarded, statement_guard

__all__ = ["_statements_are_guarded", "statement_guard"]


@pytest.fixture
def inside(_migrated: None) -> Iterator[InsideClient]:
    """The relay in this process, on this thread's connection."""
    with InsideClient() as client:
        yield client
