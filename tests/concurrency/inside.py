"""The relay in this process: the same calls without a network, so that a test can patch it."""

from collections.abc import Iterator

import httpx
import pytest
from django.core.handlers.wsgi import WSGIHandler

from relay.services import submit
from tests.client import RelayClient


class InsideClient(RelayClient):
    """A RelayClient whose requests run in the calling thread, on its database connection."""

    def __init__(self) -> None:
        super().__init__("http://localhost")
        self.http.close()
        transport = httpx.WSGITransport(app=WSGIHandler())
        self.http = httpx.Client(base_url=self.url, transport=transport)


@pytest.fixture
def reference_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process every submit takes the reference path."""
    monkeypatch.setattr(submit, "submit_at_once", lambda **_: None)


@pytest.fixture
def inside(_migrated: None, reference_path: None) -> Iterator[InsideClient]:
    """The relay in this process, on the reference path: the one whose guards a test takes out."""
    with InsideClient() as client:
        yield client
