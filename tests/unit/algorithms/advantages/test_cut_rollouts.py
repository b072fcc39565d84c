"""A rollout whose context was cut is several samples: its tokens are worth what they are worth in one."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import FLOAT64_SAME_OP

from zerogap.algorithms import (
    AdvantageInputs,
    CriticAdvantage,
    GroupAdvantage,
    LeaveOneOutAdvantage,
    MaxRLAdvantage,
    ReturnAdvantage,
    TokenBaselineAdvantage,
)

RNG = np.random.default_rng(0)
LENGTHS = np.array([6, 4, 7, 3, 5])
NUM_TOKENS = LENGTHS.sum()
WHOLE = AdvantageInputs(
    rewards_B=np.array([1.0, 0.0, 0.5, 1.0, 0.25]),
    is_valid_B=np.ones(5, bool),
    group_ids=["a", "a", "a", "b", "b"],
    loss_mask_S=RNG.random(NUM_TOKENS) < 0.8,
    sample_S=np.repeat(np.arange(5), LENGTHS),
    old_log_probs_S=-RNG.random(NUM_TOKENS).astype(np.float32),
    penalties_S=RNG.random(NUM_TOKENS) * 0.1,
    values_S=RNG.random(NUM_TOKENS).astype(np.float32),
    square_sums_S=RNG.random(NUM_TOKENS).astype(np.float32),
)
CUTS = [(0, 3, 3), (1, 4), (2, 2, 5), (3, 3), (4, 1, 4)]
"""(rollout, lengths of its samples)."""


def cut() -> AdvantageInputs:
    of = np.array([rollout for rollout, *lengths in CUTS for _ in lengths])
    lengths = [length for _, *lengths in CUTS for length in lengths]
    return replace(
        WHOLE,
        rewards_B=WHOLE.rewards_B[of],
        is_valid_B=np.ones(len(of), bool),
        first_B=np.searchsorted(of, of),
        group_ids=[WHOLE.group_ids[rollout] for rollout in of],
        sample_S=np.repeat(np.arange(len(of)), lengths),
    )


KINDS = {
    "group": GroupAdvantage(),
    "group, batch": GroupAdvantage(std="batch"),
    "leave one out": LeaveOneOutAdvantage(),
    "maxrl": MaxRLAdvantage(),
    "return": ReturnAdvantage(discount=0.9),
    "return, group": ReturnAdvantage(baseline="group"),
    "token baseline": TokenBaselineAdvantage(),
    "critic": CriticAdvantage(),
    "critic, lambdas": CriticAdvantage(
        gae_lambda=0.9, critic_lambda=0.7, discount=0.95, std="none"
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_cut_rollout_is_worth_what_the_whole_one_is(name):
    whole = KINDS[name].decide(WHOLE)

    def check(found):
        mask_S = WHOLE.loss_mask_S
        FLOAT64_SAME_OP.check(found.column_S[mask_S], whole.column_S[mask_S])
        if whole.returns_S is not None:
            FLOAT64_SAME_OP.check(found.returns_S[mask_S], whole.returns_S[mask_S])

    check(KINDS[name].decide(cut()))
    assert_notices(
        "each sample is a rollout", lambda: check(KINDS[name].decide(replace(cut(), first_B=None)))
    )
