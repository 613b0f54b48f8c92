"""A Valkey of each module's own, a topic to work on, and processes that end with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from outbox import publishing, topics
from outbox.topics import Handler, Topic
from tests.outbox.kit import PROBE, Effects, OwnValkey, Processes


@pytest.fixture(scope="module")
def _valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnValkey]:
    own = OwnValkey(tmp_path_factory.mktemp("valkey"))
    own.start()
    yield own
    own.kill()


@pytest.fixture
def valkey(_valkey: OwnValkey, _clean: None, settings: Settings) -> OwnValkey:
    """The queue's Redis: the test's alone, empty, and the one that REDIS_URL names."""
    if not _valkey.runs:
        _valkey.start()
    _valkey.client.config_set("maxmemory", 0)
    _valkey.client.config_set("maxmemory-policy", "noeviction")
    _valkey.client.flushall()
    settings.REDIS_URL = _valkey.url
    publishing.forget_connections()
    return _valkey


Register = Callable[..., Topic]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Register a topic for this test."""

    def do(handler: Handler, *, name: str = PROBE, queue: str = "wake", versions: int = 1) -> Topic:
        topic = Topic(name, queue, handler, frozenset(range(1, versions + 1)))
        monkeypatch.setitem(topics._TOPICS, name, topic)
        return topic

    return do


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    """What handlers did."""
    return Effects(tmp_path / "effects")


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Processes that are gone when the test is over."""
    started = Processes(tmp_path)
    yield started
    started.kill_all()
