"""What the tests of the rules share."""

from collections.abc import Iterator

import pytest

from tests.concurrency.inside import InsideClient


@pytest.fixture
def inside(_migrated: None) -> Iterator[InsideClient]:
    """The relay in this process, on this thread's connection."""
    with InsideClient() as client:
        yield client
