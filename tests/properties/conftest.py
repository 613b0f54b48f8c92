"""One HTTP client for all examples of a test: Hypothesis runs many within one function."""

from collections.abc import Iterator

import pytest

from tests.client import RelayClient
from tests.conftest import RelayProcess


@pytest.fixture(scope="session")
def relay(relay_process: RelayProcess) -> Iterator[RelayClient]:
    """A client of the relay that serves this worker's test database."""
    with RelayClient(relay_process.url) as client:
        yield client
