from collections.abc import Iterator

import pytest
from helpers.kernel_paths import PATHS, running_on


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs on every backend; the name of the present one."""
    with running_on(request.param):
        yield request.param
