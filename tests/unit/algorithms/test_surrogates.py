"""Each policy loss against a loop that computes value and gradient by hand, in any layout."""

import math

import numpy as np
import pytest
import torch
from helpers.loss_batches import LossBatch
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st

from zerogap.algorithms import (
    cispo_surrogate,
    clipped_surrogate,
    gspo_surrogate,
    off_policy_keep,
    reinforce_surrogate,
    sft_surrogate,
    weighted_log_probs,
)
from zerogap.errors import DataError, NumericsError

LOW, HIGH = 0.05, 0.1


def of_tokens(surrogate, **options):
    def terms_of(c):
        names = ("log_probs", "old_log_probs", "advantages", "loss_mask")
        return surrogate(*(c[name] for name in names), **options).numerator_T

    return terms_of


def gspo(c, low=LOW, high=HIGH):
    names = ("log_probs", "old_log_probs", "advantages", "loss_mask", "sample", "sample_len")
    return gspo_surrogate(*(c[name] for name in names), clip_low=low, clip_high=high).numerator_T


OURS = {
    "clipped": (of_tokens(clipped_surrogate, clip_low=LOW, clip_high=HIGH), "token"),
    "gspo": (gspo, "sample"),
    "cispo": (of_tokens(cispo_surrogate, ratio_low=0.9, ratio_high=1.2), "token"),
    "reinforce": (of_tokens(reinforce_surrogate), "sample"),
    "weighted": (
        lambda c: weighted_log_probs(c["log_probs"], -c["advantages"], c["loss_mask"]).numerator_T,
        "token",
    ),
    "sft": (lambda c: sft_surrogate(c["log_probs"], c["loss_mask"]).numerator_T, "token"),
}


def term_and_slopes(name, batch, t):
    """A token's numerator, and its derivative to each log-prob of its sample."""
    c, mine = batch.columns, [u for u in np.flatnonzero(batch.mask) if batch.sample[u] == batch.sample[t]]  # fmt: skip
    a, log_prob = c["advantages"][t], c["log_probs"][t]
    ratio = math.exp(log_prob - c["old_log_probs"][t])
    if name == "sft":
        return -log_prob, {t: -1.0}
    if name == "weighted":
        return -a * log_prob, {t: -a}
    if name == "reinforce":
        return -ratio * a, {t: -ratio * a}
    if name == "cispo":
        weight = min(max(ratio, 0.9), 1.2)
        return -weight * a * log_prob, {t: -weight * a}
    if name == "gspo":
        gaps = [c["log_probs"][u] - c["old_log_probs"][u] for u in mine]
        ratio = math.exp(sum(gaps) / len(gaps))
    free, bounded = -ratio * a, -min(max(ratio, 1 - LOW), 1 + HIGH) * a
    if bounded > free:
        return bounded, {}
    return free, dict.fromkeys(mine, free / len(mine)) if name == "gspo" else {t: free}


def loop(name, kind, batch):
    loss, gradient = 0.0, np.zeros(len(batch.sample))
    for t in np.flatnonzero(batch.mask):
        denominator = batch.denominators(kind)[batch.sample[t]]
        term, slopes = term_and_slopes(name, batch, t)
        loss += term / denominator
        for u, slope in slopes.items():
            gradient[u] += slope / denominator
    return loss, gradient


@pytest.mark.parametrize("name", OURS)
def test_loss_and_gradient_match_the_loop(name):
    terms_of, kind = OURS[name]
    batch = LossBatch(1)
    found = batch.loss_and_gradient(terms_of, kind=kind)
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
    terms_of, kind = OURS[name]
    batch = LossBatch(seed)
    order = np.random.default_rng(seed).permutation(7)
    parts = [part for part in np.array_split(order, num_parts) if len(part)]
    split = batch.loss_and_gradient(terms_of, kind=kind, parts=parts)
    FLOAT64_SAME_OP.check(split, batch.loss_and_gradient(terms_of, kind=kind))


def test_gspo_reads_one_ratio_a_record_and_clips_all_of_its_tokens():
    batch = LossBatch(2, scale=1.0)
    c = {name: torch.tensor(column) for name, column in batch.columns.items()}
    surrogate = gspo_surrogate(
        c["log_probs"], c["old_log_probs"], c["advantages"], torch.tensor(batch.mask),
        torch.tensor(batch.sample), torch.tensor(batch.len[batch.sample]), clip_low=LOW, clip_high=HIGH,
    )  # fmt: skip
    clipped = [set(surrogate.is_clipped_T.numpy()[batch.mask & (batch.sample == r)]) for r in range(7)]  # fmt: skip
    assert all(len(flags) == 1 for flags in clipped)
    assert {next(iter(flags)) for flags in clipped} == {False, True}
    EXACT.check(surrogate.numerator_T[~torch.tensor(batch.mask)].abs().sum(), torch.tensor(0.0).double())  # fmt: skip


def test_gspo_refuses_a_record_that_is_cut():
    columns = [torch.tensor([-0.5, -0.5]) for _ in range(3)]
    with pytest.raises(DataError, match="token 0: 2 of the 5 trainable tokens of its sample"):
        gspo_surrogate(
            *columns, torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.int64),
            torch.full((2,), 5), clip_low=LOW, clip_high=HIGH,
        )  # fmt: skip


def test_cispo_keeps_the_gradient_of_a_token_beyond_its_bounds():
    log_probs_T = torch.tensor([-0.1, -0.1], requires_grad=True)
    surrogate = cispo_surrogate(
        log_probs_T, torch.tensor([-3.0, -0.1]), torch.tensor([1.0, 1.0]),
        torch.ones(2, dtype=torch.bool), ratio_low=0.0, ratio_high=5.0,
    )  # fmt: skip
    surrogate.numerator_T.sum().backward()
    EXACT.check(surrogate.is_clipped_T, torch.tensor([True, False]))
    EXACT.check(log_probs_T.grad, torch.tensor([-5.0, -1.0]))


def test_the_first_update_of_reinforce_has_the_gradient_of_the_log_prob():
    log_probs_T = torch.tensor([-0.1, -7.0], requires_grad=True)
    advantages_T = torch.tensor([0.3, -2.0])
    reinforce_surrogate(
        log_probs_T, log_probs_T.detach(), advantages_T, torch.ones(2, dtype=torch.bool)
    ).numerator_T.sum().backward()
    EXACT.check(log_probs_T.grad, -advantages_T)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("column", ["log_probs", "old_log_probs", "advantages"])
def test_a_nan_that_counts_is_refused(name, column):
    if (name, column) in {("sft", "old_log_probs"), ("sft", "advantages"), ("weighted", "old_log_probs")}:  # fmt: skip
        return
    batch = LossBatch(3)
    batch.columns[column][0] = math.nan
    with pytest.raises(NumericsError, match="of token 0 is nan"):
        batch.loss_and_gradient(OURS[name][0])


def off_policy(batch, max_kl, order=None):
    order = np.arange(len(batch.sample)) if order is None else order
    c = {name: torch.tensor(column[order]) for name, column in batch.columns.items()}
    return off_policy_keep(
        c["log_probs"], c["old_log_probs"], c["advantages"], torch.tensor(batch.mask[order]),
        torch.tensor(batch.sample[order]), torch.tensor(batch.len[batch.sample[order]]), max_kl=max_kl,
    ).numpy()  # fmt: skip


def test_the_off_policy_mask_matches_the_loop():
    batch = LossBatch(4, num_samples=30)
    c = batch.columns

    def loop_keep(max_kl, sign=-1.0):
        keep = []
        for t in range(len(batch.sample)):
            mine = [
                u for u in np.flatnonzero(batch.mask) if batch.sample[u] == batch.sample[t]
            ]  # fmt: skip
            drops = [c["old_log_probs"][u] - c["log_probs"][u] for u in mine]
            rejected = c["advantages"][t] * sign > 0 and sum(drops) / len(drops) > max_kl
            keep.append(batch.mask[t] and not rejected)
        return np.array(keep)

    found = off_policy(batch, 0.05)
    EXACT.check(found, loop_keep(0.05))
    assert 0 < (batch.mask & ~found).sum() < batch.mask.sum() / 2
    assert_notices("the other sign", lambda: EXACT.check(found, loop_keep(0.05, sign=1.0)))
    assert_notices("another bound", lambda: EXACT.check(found, loop_keep(0.5)))
    order = np.concatenate([np.flatnonzero(batch.sample == r) for r in range(29, -1, -1)])
    EXACT.check(off_policy(batch, 0.05, order), found[order])


def test_the_off_policy_mask_keeps_records_that_are_not_pushed_down():
    """Advantage 0 has no policy term, but a penalty on the KL, which is what brings such a sample back."""
    batch = LossBatch(6)
    batch.columns["advantages"] = np.zeros_like(batch.columns["advantages"])
    EXACT.check(off_policy(batch, 1e-9), batch.mask)
    batch.columns["advantages"] -= 1.0
    assert_notices("all are pushed down", lambda: EXACT.check(off_policy(batch, 1e-9), batch.mask))


def test_the_off_policy_mask_rejects_nothing_in_a_first_update():
    batch = LossBatch(5)
    batch.columns["log_probs"] = batch.columns["old_log_probs"].copy()
    EXACT.check(off_policy(batch, 1e-9), batch.mask)
