"""What the races share."""

import pytest

from tests import contract


@pytest.fixture(scope="session", autouse=True)
def _schema_is_built(_migrated: None) -> None:
    """Building the schema is not for many threads at once; done before the first race."""
    contract.schema()
