"""What the tests of the rules share."""

from tests.concurrency.inside import inside, reference_path

__all__ = ["inside", "reference_path"]
