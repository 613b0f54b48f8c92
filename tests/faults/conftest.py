"""One cluster for all tests of a session, and a world of processes for each module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import contract
from tests.conftest import forget_everything
from tests.faults.load import Load
from tests.faults.servers import OwnPostgres, OwnRedis
from tests.faults.world import World, django_leads_to


@pytest.fixture(scope="session")
def _postgres(_migrated: None) -> Iterator[OwnPostgres]:
    contract.schema()  # building it is not for many threads at once
    made = OwnPostgres()
    made.prepare()
    made.stop()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def _world(_postgres: OwnPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("world")
    redis = OwnRedis(root)
    _postgres.start()
    redis.start()
    with django_leads_to(_postgres.parameters()):
        made = World(root, _postgres, redis)
        try:
            yield made
        finally:
            made.end()
            redis.kill()
            _postgres.stop_immediately()
    forget_everything()


@pytest.fixture
def world(_world: World, _clean: None) -> Iterator[World]:
    """The module's world, whole, with empty tables. Processes run as the test before left them."""
    _world.begin()
    yield _world
    _world.heal()


@pytest.fixture
def load(world: World, tmp_path: Path) -> Iterator[Load]:
    """Clients of it; needs the web process."""
    made = Load(world, tmp_path / "journal")
    yield made
    made.close()
