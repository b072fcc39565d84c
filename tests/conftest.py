"""Same threads, same seeds, same number of examples, wherever the tests run.

Quick, as in ``make test``: one thread of torch, since pytest-xdist gives each core a worker; shape annotations are
checked in the tests of the rooms that have them, and where engine and trainer use those. With ``--thorough``, as in ``make test-slow``: two threads, shapes
checked in every test, four times the examples. Tests about threads set their own number.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
from hypothesis import settings

# Tests say how many examples they take in ``quick``; helpers.examples multiplies that.
settings.register_profile("brief", deadline=None, max_examples=10)
settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=200)
settings.load_profile("quick")

_TESTS = Path(__file__).parent
_SHAPES_CHECKED = [
    _TESTS / "unit" / "algorithms",
    _TESTS / "unit" / "kernels",
    _TESTS / "unit" / "engine" / "test_engine.py",
    _TESTS / "parity" / "test_kernels_vs_reference.py",
    _TESTS / "parity" / "test_trainer_layouts.py",
]
"""Elsewhere the checks would take two thirds of the time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="two threads, all shapes checked, many examples"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("thorough"):
        settings.load_profile("thorough")
    # What torch's runtime reads when it is loaded: here, in workers and in the commands that tests run.
    environment = pytest.MonkeyPatch()
    config.add_cleanup(environment.undo)
    environment.setenv("OMP_NUM_THREADS", str(_num_threads(config)))
    # A thread that waits leaves its core to the neighbour.
    environment.setenv("OMP_WAIT_POLICY", "passive")


def _num_threads(config: pytest.Config) -> int:
    return 2 if config.getoption("thorough") else 1


@pytest.fixture(autouse=True, scope="session")
def _fixed_threads(request: pytest.FixtureRequest) -> None:
    # Tests that need torch have imported it during collection; the light rooms' tests run without it.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(_num_threads(request.config))


@pytest.fixture(autouse=True)
def _threads_come_back() -> Iterator[None]:
    """A test's number of threads is its own."""
    torch = sys.modules.get("torch")
    before = torch and torch.get_num_threads()
    yield
    if torch:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _checked_shapes(request: pytest.FixtureRequest) -> None:
    is_checked = request.config.getoption("thorough") or any(
        request.path.is_relative_to(folder) for folder in _SHAPES_CHECKED
    )
    jaxtyping.config.update("jaxtyping_disable", not is_checked)


@pytest.fixture
def toy_family(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a family that is registered while the test runs."""
    from helpers.toy_family import TOY

    from zerogap.models import FAMILIES

    monkeypatch.setitem(FAMILIES, TOY.name, TOY)
    return TOY.name
