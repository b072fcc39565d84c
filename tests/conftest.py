"""Same threads, same seeds, same number of examples, wherever the tests run.

One thread of torch, since pytest-xdist gives each core a worker; tests about threads set their own number, and the
slow tier runs everything on two (``--torch-threads 2``).
"""

import random
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings

# Tests say how many examples they take in ``quick``; helpers.examples multiplies that.
settings.register_profile("brief", deadline=None, max_examples=10)
settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--torch-threads",
        type=int,
        default=1,
        help="threads of torch, in tests and what they start",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """What torch's runtime reads when it is loaded, here, in workers and in the commands that tests run."""
    environment = pytest.MonkeyPatch()
    config.add_cleanup(environment.undo)
    environment.setenv("OMP_NUM_THREADS", str(config.getoption("torch_threads")))
    # A thread that waits leaves its core to the neighbour.
    environment.setenv("OMP_WAIT_POLICY", "passive")


@pytest.fixture(autouse=True, scope="session")
def _fixed_threads(request: pytest.FixtureRequest) -> None:
    # Tests that need torch have imported it during collection; the light rooms' tests run without it.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(request.config.getoption("torch_threads"))


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _threads_come_back() -> Iterator[None]:
    """A test's number of threads is its own."""
    torch = sys.modules.get("torch")
    before = torch and torch.get_num_threads()
    yield
    if torch:
        torch.set_num_threads(before)
