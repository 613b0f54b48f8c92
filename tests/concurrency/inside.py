"""The relay in this process: the same calls without a network, so that a test can patch it."""

import httpx
from django.core.handlers.wsgi import WSGIHandler

from tests.client import RelayClient


class InsideClient(RelayClient):
    """A RelayClient whose requests run in the calling thread, on its database connection."""

    def __init__(self) -> None:
        super().__init__("http://localhost")
        self.http.close()
        transport = httpx.WSGITransport(app=WSGIHandler())
        self.http = httpx.Client(base_url=self.url, transport=transport)
