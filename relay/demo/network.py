"""The demo's way to the relay, which loses one answer on purpose."""

import ipaddress
from collections.abc import Callable

import httpx

from relay.demo.words import DemoFailed


def open_http(url: str, lost: "LostAnswer") -> httpx.Client:
    """Connections to the relay, past any proxy when it runs on this machine.

    Raises DemoFailed for what is no http:// or https:// URL.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise DemoFailed(f"{url} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise DemoFailed(f"{url} is no plain http:// or https:// URL.")
    hooks = {"response": [lost.pass_on]}
    return httpx.Client(base_url=parsed, event_hooks=hooks, trust_env=not _is_here(parsed.host))


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class LostAnswer:
    """A network that loses the answer to one submit after the relay has committed it."""

    def __init__(self) -> None:
        self.armed = False
        self.body = b""
        self.on_loss: Callable[[], None] = lambda: None

    def pass_on(self, response: httpx.Response) -> None:
        """Let an answer through; when armed, take the next acceptance away instead."""
        if self.armed and response.status_code == 201:
            self.armed = False
            self.body = response.read()  # all of it came: only the client never sees it
            self.on_loss()
            raise httpx.ReadTimeout("the time was up", request=response.request)
