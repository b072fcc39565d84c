"""The optimal token baseline (FORMULAS.md, 3)."""

import math

import numpy as np
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP

from zerogap.algorithms import AdvantageInputs, TokenBaselineAdvantage


def inputs(seed=0, num_samples=6, group_ids="aababc"):
    """Samples with masked tokens anywhere; log-probs and sums of squares of real distributions over 9 ids."""
    rng = np.random.default_rng(seed)
    sample = np.repeat(np.arange(num_samples), rng.integers(3, 9, size=num_samples))
    mask = rng.random(len(sample)) < 0.7
    mask[np.unique(sample, return_index=True)[1]] = True
    p = rng.dirichlet(np.ones(9), size=len(sample))
    log_probs, squares = np.log(p[:, 0]), (p**2).sum(1)
    log_probs[~mask], squares[~mask] = np.nan, np.nan
    return AdvantageInputs(
        rewards_B=rng.normal(size=num_samples), is_valid_B=np.ones(num_samples, bool), group_ids=list(group_ids),
        loss_mask_S=mask, sample_S=sample, old_log_probs_S=log_probs, square_sums_S=squares,
    )  # fmt: skip


def loop(given, *, includes_tail=False, cumulative=True, own=True):
    """One token at a time: A = G - B, B = sum of G W over sum of W of the group's members with a t-th token."""
    slots = [
        [s for s in range(len(given.sample_S)) if given.sample_S[s] == i and given.loss_mask_S[s]]
        for i in range(len(given.rewards_B))
    ]

    def energy(i, t):
        of = range(t + 1) if cumulative else [t]
        return sum(
            1 - 2 * math.exp(given.old_log_probs_S[slots[i][j]]) + given.square_sums_S[slots[i][j]]
            for j in of
        )

    advantages = np.full(len(given.sample_S), np.nan)
    for i, mine in enumerate(slots):
        for t, slot in enumerate(mine):
            alive = [
                k
                for k in range(len(slots))
                if given.group_ids[k] == given.group_ids[i]
                and len(slots[k]) > t
                and (own or k != i)
            ]
            total = sum(energy(k, t) for k in alive)
            has_baseline = (len(alive) > 1 or includes_tail) and total > 0
            weighted = sum(given.rewards_B[k] * energy(k, t) for k in alive)
            advantages[slot] = given.rewards_B[i] - (weighted / total if has_baseline else 0.0)
    return advantages


def test_the_token_baseline_matches_the_loop():
    given = inputs()
    found = TokenBaselineAdvantage().decide(given)
    FLOAT64_SAME_OP.check(found.column_S, loop(given))
    assert found.groups.num_groups == 3
    faults = {
        "a lone tail has its own return as baseline": {"includes_tail": True},
        "the energy of one token": {"cumulative": False},
        "without the own return": {"own": False},
    }
    for what, fault in faults.items():
        assert_notices(
            what, lambda f=fault: FLOAT64_SAME_OP.check(found.column_S, loop(given, **f))
        )


def test_equal_rewards_have_no_advantage_and_a_lone_sample_its_whole_return():
    given = inputs(1, num_samples=3, group_ids="aab")
    given.rewards_B[:] = 0.7
    found = TokenBaselineAdvantage().decide(given).column_S
    FLOAT64_SAME_OP.check(found, loop(given))
    alone = given.loss_mask_S & (given.sample_S == 2)
    EXACT.check(found[alone], np.full(alone.sum(), 0.7))


def test_the_rounding_of_certain_tokens_leaves_the_baseline_within_the_returns():
    """W is 0 there; in float32 it is +-1e-7, and a quotient of such numbers would be anything."""
    given = AdvantageInputs(
        rewards_B=np.array([1.0, 0.0]), is_valid_B=np.ones(2, bool), group_ids=["a", "a"],
        loss_mask_S=np.ones(2, bool), sample_S=np.arange(2), old_log_probs_S=np.zeros(2, np.float32),
        square_sums_S=np.array([1 + 2.4e-7, 1 - 1.2e-7], np.float32),
    )  # fmt: skip
    found = TokenBaselineAdvantage().decide(given).column_S
    assert (np.abs(found) <= 1).all()
    unbounded = given.square_sums_S.astype(float) - 1
    with_rounding = (unbounded * given.rewards_B).sum() / unbounded.sum()
    assert with_rounding > 1.5
