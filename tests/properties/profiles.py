"""How long the properties run: short and the same in CI, long and new on demand."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

#: 1 in CI; more for a long run on a machine of one's own.
TIMES = int(os.environ.get("PROPERTY_TIMES", "1"))
IS_LONG = TIMES > 1

#: Seconds: a property of CI is bounded by its examples, and this is only its fuse.
fuse = pytest.mark.timeout(0 if IS_LONG else 300)


#: A busy machine is no fault, nor is a fixture that all examples of a test share.
_NO_FAULTS = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
]


def examples(number: int, **options: Any) -> settings:
    """`number` examples in CI, PROPERTY_TIMES as many in a long run.

    There is no deadline for one example: an answer takes as long as the machine is busy, and
    what hangs is found by the time limit of the client. CI reports the first failure as it is;
    a long run looks for the simplest one, which may take minutes.
    """
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if IS_LONG else [])]
    return settings(
        max_examples=number * TIMES,
        derandomize=not IS_LONG,
        database=None,
        deadline=None,
        phases=phases,
        print_blob=True,
        suppress_health_check=_NO_FAULTS,
        **options,
    )
