"""Each loss against a loop that computes value and gradient by hand, in any layout."""

import math

import numpy as np
import pytest
import torch
from helpers.loss_batches import LossBatch, surrogate_of
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st

from zerogap.algorithms import (
    LOSSES,
    CISPOLoss,
    ClipLoss,
    DPOLoss,
    DPPOLoss,
    DRPOLoss,
    ReinforceLoss,
    SAPOLoss,
    SFTLoss,
    policy_ratio,
)
from zerogap.errors import DataError

LOW, HIGH = 0.05, 0.1
OURS = {
    "clip": (ClipLoss(clip_low=LOW, clip_high=HIGH), "token"),
    "clip, dual": (ClipLoss(clip_low=LOW, clip_high=HIGH, dual_clip=1.2), "token"),
    "clip, geometric": (ClipLoss(clip_low=LOW, clip_high=HIGH, ratio="geometric"), "sample"),
    "clip, sequence": (ClipLoss(clip_low=LOW, clip_high=HIGH, ratio="sequence"), "sample"),
    "cispo": (CISPOLoss(ratio_low=0.9, ratio_high=1.2), "token"),
    "reinforce": (ReinforceLoss(), "sample"),
    "sapo": (SAPOLoss(tau_pos=1.5, tau_neg=2.5), "sample"),
    "dppo, tv": (DPPOLoss(max_divergence_low=0.05, max_divergence_high=0.08), "token"),
    "dppo, kl": (
        DPPOLoss(divergence="kl", max_divergence_low=0.01, max_divergence_high=0.02),
        "token",
    ),
    "dppo, capped": (DPPOLoss(max_ratio=1.1), "token"),
    "drpo": (DRPOLoss(delta=0.3), "token"),
    "dpo": (DPOLoss(), "token"),
    "sft": (SFTLoss(), "token"),
}


def test_every_kind_has_a_loop():
    assert {loss.kind for loss, _ in OURS.values()} == set(LOSSES) - {"import"}


def clip(ratio, a, dual=None):
    free, bounded = ratio * a, min(max(ratio, 1 - LOW), 1 + HIGH) * a
    objective, slope = (free, free) if free <= bounded else (bounded, 0.0)
    if dual is not None and a < 0 and objective < dual * a:
        objective, slope = dual * a, 0.0
    return -objective, -slope


def dppo(p, q, a, log_prob, *, divergence="tv", low=0.15, high=0.15, cap=20.0):
    # FORMULAS.md, 1: M = 0 where the policy has moved away from the sampler, beyond the bound.
    shift = abs(p - q)
    if divergence == "kl":
        shift = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    is_out = (a > 0 and p > q and shift > high) or (a <= 0 and p < q and shift > low)
    weight = 0.0 if is_out else min(p / q, cap)
    return -a * weight * log_prob, -a * weight


def drpo(p, q, a, delta):
    # 8: the value; the gradient by its weight w.
    ratio = p / q
    direction = 1.0 if a * (ratio - 1) > 0 else -1.0
    w = 1 - direction * abs(p - q) / delta
    return -a * ratio + abs(a) * q * (ratio - 1) ** 2 / (2 * delta), -a * w * ratio


def sapo(ratio, a, tau_pos, tau_neg):
    # 2: f = sigmoid(tau (r - 1)) 4 / tau, and w = 4 s (1 - s).
    tau = tau_pos if a > 0 else tau_neg
    s = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return -s * 4 / tau * a, -4 * s * (1 - s) * ratio * a


def term_and_slope(name, batch, t):
    """A token's numerator, and its derivative to the token's own log-prob, the only one that it depends on."""
    c = batch.columns
    mine = [u for u in np.flatnonzero(batch.mask) if batch.sample[u] == batch.sample[t]]
    a, log_prob = c["advantages"][t], c["log_probs"][t]
    ratio = math.exp(log_prob - c["old_log_probs"][t])
    gaps = [c["log_probs"][u] - c["old_log_probs"][u] for u in mine]
    p, q = math.exp(log_prob), math.exp(c["rollout_log_probs"][t])
    weight = min(max(ratio, 0.9), 1.2)
    return {
        "clip": lambda: clip(ratio, a),
        "clip, dual": lambda: clip(ratio, a, dual=1.2),
        # 10, GSPO-token: the value is the sample's ratio, the gradient that of the own log-prob times it.
        "clip, geometric": lambda: clip(math.exp(sum(gaps) / len(gaps)), a),
        "clip, sequence": lambda: clip(math.exp(sum(gaps)), a),
        "cispo": lambda: (-weight * a * log_prob, -weight * a),
        "reinforce": lambda: (-ratio * a, -ratio * a),
        "sapo": lambda: sapo(ratio, a, 1.5, 2.5),
        "dppo, tv": lambda: dppo(p, q, a, log_prob, low=0.05, high=0.08),
        "dppo, kl": lambda: dppo(p, q, a, log_prob, divergence="kl", low=0.01, high=0.02),
        "dppo, capped": lambda: dppo(p, q, a, log_prob, cap=1.1),
        "drpo": lambda: drpo(p, q, a, 0.3),
        "dpo": lambda: (-a * log_prob, -a),
        "sft": lambda: (-log_prob, -1.0),
    }[name]()


def loop(name, kind, batch):
    loss, gradient = 0.0, np.zeros(len(batch.sample))
    for t in np.flatnonzero(batch.mask):
        denominator = batch.denominators(kind)[batch.sample[t]]
        term, slope = term_and_slope(name, batch, t)
        loss += term / denominator
        gradient[t] = slope / denominator
    return loss, gradient


def terms_of(loss):
    return lambda columns: surrogate_of(loss, columns).numerator_T


@pytest.mark.parametrize("name", OURS)
def test_loss_and_gradient_match_the_loop(name):
    loss, kind = OURS[name]
    batch = LossBatch(1)
    found = batch.loss_and_gradient(terms_of(loss), kind=kind)
    FLOAT64_SAME_OP.check(found, loop(name, kind, batch))
    other = "sample" if kind == "token" else "token"
    assert_notices(
        "another denominator", lambda: FLOAT64_SAME_OP.check(found, loop(name, other, batch))
    )
    batch.columns["log_probs"] = batch.columns["log_probs"] * 1.01
    assert_notices(
        "log-probs one percent larger",
        lambda: FLOAT64_SAME_OP.check(found, loop(name, kind, batch)),
    )


@pytest.mark.parametrize("name", OURS)
@given(seed=st.integers(0, 10_000), num_parts=st.integers(1, 7))
def test_any_split_and_order_of_records_gives_the_same_sum(name, seed, num_parts):
    loss, kind = OURS[name]
    batch = LossBatch(seed)
    order = np.random.default_rng(seed).permutation(7)
    parts = [part for part in np.array_split(order, num_parts) if len(part)]
    split = batch.loss_and_gradient(terms_of(loss), kind=kind, parts=parts)
    FLOAT64_SAME_OP.check(split, batch.loss_and_gradient(terms_of(loss), kind=kind))


@pytest.mark.parametrize("name", ["dppo, tv", "dppo, kl", "drpo"])
def test_a_trust_region_in_probabilities_reads_the_engine_and_not_the_old_policy(name):
    loss, kind = OURS[name]
    batch = LossBatch(1)
    found = batch.loss_and_gradient(terms_of(loss), kind=kind)
    batch.columns["old_log_probs"] = batch.columns["old_log_probs"] - 1.0
    EXACT.check(batch.loss_and_gradient(terms_of(loss), kind=kind), found)
    batch.columns["rollout_log_probs"] = batch.columns["rollout_log_probs"] - 0.01
    other = batch.loss_and_gradient(terms_of(loss), kind=kind)
    assert_notices("another engine", lambda: FLOAT64_SAME_OP.check(other, found))


def test_dppo_drops_moves_away_from_the_engine_and_never_moves_back():
    log_probs = torch.tensor([0.9, 0.9, 0.1, 0.1]).double().log()
    columns = {
        "log_probs": log_probs.requires_grad_(),
        "old_log_probs": log_probs.detach(),
        "rollout_log_probs": torch.full((4,), 0.5).double().log(),
        "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0]).double(),
        "sample": torch.arange(4),
        "sample_len": torch.ones(4, dtype=torch.int64),
    }
    surrogate = surrogate_of(DPPOLoss(), columns)
    EXACT.check(surrogate.is_clipped_T, torch.tensor([True, False, False, True]))
    surrogate.numerator_T.sum().backward()
    EXACT.check(log_probs.grad != 0, torch.tensor([False, True, True, False]))


def test_sapo_has_the_plain_gradient_on_policy_and_fades_away_from_it():
    old = torch.full((3,), -2.0).double()
    log_probs = (old + torch.tensor([0.0, 1.0, 2.0])).requires_grad_()
    columns = {
        "log_probs": log_probs, "old_log_probs": old, "rollout_log_probs": old, "advantages": torch.ones(3).double(),
        "sample": torch.arange(3), "sample_len": torch.ones(3, dtype=torch.int64),
    }  # fmt: skip
    surrogate_of(SAPOLoss(), columns).numerator_T.sum().backward()
    relative = -log_probs.grad / (log_probs.detach() - old).exp()
    EXACT.check(relative[0], torch.tensor(1.0).double())
    assert relative[0] > relative[1] > relative[2] > 0


def test_gspo_reads_one_ratio_a_record_and_clips_all_of_its_tokens():
    batch = LossBatch(2, scale=1.0)
    loss = ClipLoss(ratio="geometric", clip_low=LOW, clip_high=HIGH)
    columns = batch.tensors()
    is_clipped = surrogate_of(loss, columns).is_clipped_T.numpy()
    clipped = [set(is_clipped[columns["sample"].numpy() == r]) for r in range(7)]
    assert all(len(flags) == 1 for flags in clipped)
    assert {next(iter(flags)) for flags in clipped} == {False, True}


def test_gspo_is_the_papers_where_nothing_is_rejected_or_weighted():
    """FORMULAS.md, 10: with one advantage a sample, GSPO-token has GSPO's value and gradient."""
    batch = LossBatch(2)
    loss = ClipLoss(ratio="geometric", clip_low=LOW, clip_high=HIGH)

    def of_sequences(columns):
        terms = torch.zeros_like(columns["log_probs"])
        for r in columns["sample"].unique():
            mine = columns["sample"] == r
            s = (columns["log_probs"] - columns["old_log_probs"])[mine].mean().exp()
            a = columns["advantages"][mine][0]
            term = -torch.minimum(s * a, s.clamp(1 - LOW, 1 + HIGH) * a)
            terms = terms + torch.where(mine, term, 0.0)
        return terms

    found = batch.loss_and_gradient(terms_of(loss), kind="sample")
    FLOAT64_SAME_OP.check(found, batch.loss_and_gradient(of_sequences, kind="sample"))
    keep = batch.mask.copy()
    keep[np.flatnonzero(keep)[0]] = False
    rejected = batch.loss_and_gradient(of_sequences, kind="sample", keep_S=keep)
    ours = batch.loss_and_gradient(terms_of(loss), kind="sample", keep_S=keep)
    assert_notices("a rejection", lambda: FLOAT64_SAME_OP.check(ours[1], rejected[1]))


def one_sample_of_four():
    """Ratio 0.997, advantage 1, all of it trained: -0.249 a token with denominator sample."""
    batch = LossBatch()
    batch.sample, batch.mask, batch.len = np.zeros(4, int), np.ones(4, bool), np.array([4])
    old = np.array([-1.0, -2.0, -0.5, -3.0])
    batch.columns = {
        "log_probs": old + math.log(0.997), "old_log_probs": old, "rollout_log_probs": old, "advantages": np.ones(4),
    }  # fmt: skip
    return batch, terms_of(ClipLoss(ratio="geometric", clip_low=3e-2, clip_high=3e-2))


def flows_through_the_mean(columns):
    """The form before GSPO-token's: every token of a sample gets the gradient of each of its terms."""
    log_ratio_T = columns["log_probs"] - columns["old_log_probs"]
    return -log_ratio_T.mean().exp() * columns["advantages"]


def test_a_rejected_token_has_no_gradient_in_gspo():
    """The old form: -0.187 on all four. (The review's -0.332 divides by three; here a rejection changes no denominator.)"""
    batch, gspo = one_sample_of_four()
    keep = np.array([True, True, True, False])
    _, gradient = batch.loss_and_gradient(gspo, kind="sample", keep_S=keep)
    expected = np.array([-0.997 / 4] * 3 + [0.0])
    FLOAT64_SAME_OP.check(gradient, expected)
    assert gradient[3] == 0.0
    _, old = batch.loss_and_gradient(flows_through_the_mean, kind="sample", keep_S=keep)
    assert old.round(3).tolist() == [-0.187] * 4
    assert_notices("the sample's mean", lambda: FLOAT64_SAME_OP.check(old, expected))


def test_a_token_weight_weighs_its_own_token_in_gspo():
    """The old form: -0.188 on every token, also on the one whose weight is 0.01."""
    batch, gspo = one_sample_of_four()
    weight = np.array([1.0, 1.0, 1.0, 0.01])
    _, gradient = batch.loss_and_gradient(gspo, kind="sample", weight_S=weight)
    FLOAT64_SAME_OP.check(gradient, -0.997 / 4 * weight)
    _, old = batch.loss_and_gradient(flows_through_the_mean, kind="sample", weight_S=weight)
    assert old.round(3).tolist() == [-0.188] * 4
    assert_notices("the sample's mean", lambda: FLOAT64_SAME_OP.check(old, -0.997 / 4 * weight))


@pytest.mark.parametrize("level", ["sequence", "geometric"])
def test_a_ratio_of_a_sample_refuses_a_record_that_is_cut(level):
    columns = [torch.tensor([-0.5, -0.5]) for _ in range(2)]
    sample, length = torch.zeros(2, dtype=torch.int64), torch.full((2,), 5)
    with pytest.raises(DataError, match="token 0: 2 of the 5 trainable tokens of its sample"):
        policy_ratio(*columns, sample, length, level=level)
    EXACT.check(policy_ratio(*columns, sample, length, level="token"), torch.ones(2))


def of_two(log_probs, old, advantages):
    log_probs_T = torch.tensor(log_probs, requires_grad=True)
    columns = {
        "log_probs": log_probs_T, "advantages": torch.tensor(advantages), "sample": torch.arange(2),
        "old_log_probs": torch.tensor(old), "rollout_log_probs": torch.tensor(old),
        "sample_len": torch.ones(2, dtype=torch.int64),
    }  # fmt: skip
    return log_probs_T, columns


def test_cispo_keeps_the_gradient_of_a_token_beyond_its_bounds():
    log_probs_T, columns = of_two([-0.1, -0.1], [-3.0, -0.1], [1.0, 1.0])
    surrogate = surrogate_of(CISPOLoss(ratio_low=0.0, ratio_high=5.0), columns)
    surrogate.numerator_T.sum().backward()
    EXACT.check(surrogate.is_clipped_T, torch.tensor([True, False]))
    EXACT.check(log_probs_T.grad, torch.tensor([-5.0, -1.0]))


def test_the_first_update_of_reinforce_has_the_gradient_of_the_log_prob():
    log_probs_T, columns = of_two([-0.1, -7.0], [-0.1, -7.0], [0.3, -2.0])
    surrogate_of(ReinforceLoss(), columns).numerator_T.sum().backward()
    EXACT.check(log_probs_T.grad, -columns["advantages"])
