"""Same threads, same seeds, wherever the tests run."""

import random
import sys

import numpy as np
import pytest
from hypothesis import settings

NUM_THREADS = 2

settings.register_profile("zerogap", deadline=None, max_examples=50)
settings.load_profile("zerogap")


@pytest.fixture(autouse=True, scope="session")
def _fixed_threads() -> None:
    # Tests that need torch have imported it during collection; the light rooms' tests run without it.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(NUM_THREADS)


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)
