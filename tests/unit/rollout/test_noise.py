"""No two requests of a run draw with the same random numbers."""

import itertools

import numpy as np
import pytest
from helpers.planted_fault import assert_notices

from zerogap.kernels import position_uniform
from zerogap.rollout.noise import noise_seed

NUM_POSITIONS = 16


def requests(seed_of):
    """(seed, index of the sibling) of every draw: whole groups, and single siblings."""
    names = [(run, f"train-{step:06d}-0000", item) for run in (0, 1) for step in (0, 1) for item in ("a", "b")]  # fmt: skip
    for name in names:
        for attempt in range(3):
            group = seed_of(*name, attempt=attempt)
            yield from ((group, index) for index in range(8))
        for sibling, turn, attempt in itertools.product(range(8), range(6), range(3)):
            yield seed_of(*name, sibling=sibling, turn=turn, attempt=attempt), 0


def check_none_is_shared(seed_of):
    keys = list(requests(seed_of))
    assert len(set(keys)) == len(keys)
    assert max(seed for seed, _ in keys) < 2**53
    streams = uniforms(keys)
    assert np.unique(streams).size == streams.size


def uniforms(keys):
    seed, index = np.repeat(np.array(keys, np.int64).T, NUM_POSITIONS, axis=1)
    return position_uniform(seed, index, np.tile(np.arange(NUM_POSITIONS), len(keys)))


def test_no_two_turns_siblings_or_attempts_share_random_numbers():
    check_none_is_shared(noise_seed)


@pytest.mark.parametrize("forgotten", ["sibling", "turn", "attempt"])
def test_a_key_that_forgets_something_is_noticed(forgotten):
    def forgets(*names, **who):
        return noise_seed(*names, **who | {forgotten: 0})

    assert_notices(f"{forgotten} left out", lambda: check_none_is_shared(forgets))


def test_a_key_that_adds_up_is_noticed():
    def adds(*names, sibling=None, turn=0, attempt=0):
        return noise_seed(*names, sibling=0) + (sibling or 0) + turn + attempt

    assert_notices("turn 1 of sibling 0 is turn 0 of sibling 1", lambda: check_none_is_shared(adds))


def test_seeds_are_the_same_on_every_machine():
    name = (0, "train-000000-0000", "a")
    assert noise_seed(*name) == 8336293657905573
    assert noise_seed(*name, sibling=3, turn=2, attempt=1) == 8539888958209223
