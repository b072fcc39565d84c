import math

import numpy as np
import pytest
import torch
from helpers.loss_batches import surrogate_of
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st

from zerogap.algorithms import DPOLoss, dpo_coefficients, reduce_loss, sample_sums
from zerogap.errors import DataError, NumericsError

PAIRS = np.array([[0, 1], [2, 3], [5, 4], [0, 6]])
"""The first sample is in two pairs, and a chosen one may come after its rejected one."""


def batch(seed=0):
    rng = np.random.default_rng(seed)
    sample = np.repeat(np.arange(7), rng.integers(1, 9, size=7))
    mask = rng.random(len(sample)) < 0.8
    log_probs, ref = -rng.exponential(size=(2, len(sample)))
    log_probs[~mask], ref[~mask] = np.nan, np.nan
    return log_probs, ref, mask, sample


def reference(log_probs, ref, mask, sample, *, beta, smoothing):
    """The paper's loss with autograd through both sums: (loss, gradient)."""
    log_probs_S = torch.tensor(np.nan_to_num(log_probs), requires_grad=True)

    def reward(r):
        mine = np.flatnonzero(mask & (sample == r))
        return beta * (log_probs_S[mine].sum() - ref[mine].sum())

    losses = []
    for chosen, rejected in PAIRS:
        margin = reward(chosen) - reward(rejected)
        right, wrong = (torch.nn.functional.logsigmoid(m) for m in (margin, -margin))
        losses.append(-(1 - smoothing) * right - smoothing * wrong)
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss.item(), log_probs_S.grad.numpy()


def ours(log_probs, ref, mask, sample, *, beta, smoothing, parts=((0, 1, 2, 3, 4, 5, 6),)):
    sums, ref_sums = (sample_sums(c, mask, sample, num_samples=7) for c in (log_probs, ref))
    terms = dpo_coefficients(sums, ref_sums, PAIRS, beta=beta, label_smoothing=smoothing)
    gradient = np.zeros(len(sample))
    for part in parts:
        tokens = np.concatenate([np.flatnonzero(mask & (sample == r)) for r in part])
        log_probs_T = torch.tensor(log_probs[tokens], requires_grad=True)
        mask_T = torch.ones(len(tokens), dtype=torch.bool)
        columns = {
            "log_probs": log_probs_T, "old_log_probs": log_probs_T.detach(), "rollout_log_probs": log_probs_T.detach(),
            "advantages": torch.tensor(-terms.coefficient_B[sample[tokens]]),
            "sample": torch.tensor(sample[tokens]), "sample_len": mask_T.long(),
        }  # fmt: skip
        numerator_T = surrogate_of(DPOLoss(), columns).numerator_T
        reduce_loss(numerator_T, torch.tensor(terms.denominator_B[sample[tokens]]), mask_T).backward()  # fmt: skip
        gradient[tokens] = log_probs_T.grad.numpy()
    return terms.losses_P.mean(), gradient


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_loss_and_gradient_are_the_papers(beta, smoothing):
    columns = batch()
    found = ours(*columns, beta=beta, smoothing=smoothing)
    FLOAT64_SAME_OP.check(found, reference(*columns, beta=beta, smoothing=smoothing))
    wrong = reference(*columns, beta=beta, smoothing=smoothing + 0.01)
    assert_notices("another smoothing", lambda: FLOAT64_SAME_OP.check(found, wrong))


@given(st.integers(0, 10_000), st.integers(1, 7))
def test_a_pair_need_not_share_a_micro_batch(seed, num_parts):
    columns = batch(seed)
    order = np.random.default_rng(seed).permutation(7)
    parts = [part for part in np.array_split(order, num_parts) if len(part)]
    split = ours(*columns, beta=0.5, smoothing=0.1, parts=parts)
    FLOAT64_SAME_OP.check(split, ours(*columns, beta=0.5, smoothing=0.1))


def test_an_unmoved_policy_has_log_two_and_half_the_strength():
    sums = np.array([-3.0, -5.0])
    terms = dpo_coefficients(sums, sums.copy(), np.array([[0, 1]]), beta=0.2)
    FLOAT64_SAME_OP.check(terms.losses_P, np.array([math.log(2)]))
    FLOAT64_SAME_OP.check(terms.coefficient_B, np.array([-0.1, 0.1]))
    assert terms.accuracy == 0.0


def test_rewards_margins_and_accuracy():
    terms = dpo_coefficients(
        np.array([-1.0, -2.0, -3.0, -4.0]), np.array([-2.0, -2.0, -1.0, -3.0]),
        np.array([[0, 1], [2, 3]]), beta=0.5,
    )  # fmt: skip
    EXACT.check(terms.chosen_rewards_P, np.array([0.5, -1.0]))
    EXACT.check(terms.rejected_rewards_P, np.array([0.0, -0.5]))
    EXACT.check(terms.margins_P, np.array([0.5, -0.5]))
    assert terms.accuracy == 0.5


def test_a_hopeless_pair_is_finite_and_pulls_with_full_strength():
    terms = dpo_coefficients(
        np.array([-5000.0, -1.0]), np.array([-1.0, -5000.0]), np.array([[0, 1]]), beta=1.0
    )
    EXACT.check(terms.losses_P, np.array([9998.0]))
    EXACT.check(terms.coefficient_B, np.array([-1.0, 1.0]))


def test_a_record_in_no_pair_may_hold_anything():
    terms = dpo_coefficients(
        np.array([-1.0, -2.0, np.nan]), np.array([-1.0, -2.0, np.inf]), np.array([[0, 1]]), beta=1.0
    )
    assert terms.coefficient_B[2] == 0.0
    assert np.isfinite(terms.losses_P).all()


def test_what_cannot_be_learnt_is_refused():
    with pytest.raises(NumericsError, match="sample 1 has log-prob nan and reference log-prob"):
        dpo_coefficients(np.array([-1.0, np.nan]), np.zeros(2), np.array([[0, 1]]), beta=1.0)
    with pytest.raises(DataError, match="2 samples but no pair"):
        dpo_coefficients(np.zeros(2), np.zeros(2), np.zeros((0, 2), int), beta=1.0)
