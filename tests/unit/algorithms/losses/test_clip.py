import math

import numpy as np
import pytest
import torch
from helpers.loss_batches import surrogate_of
from helpers.planted_fault import assert_notices, planted_fault
from helpers.tolerance import EXACT, FLOAT64_REFERENCE, FLOAT64_SAME_OP
from jaxtyping import TypeCheckError

from zerogap.algorithms import ClipLoss, LossTerms, loss_denominators, reduce_loss

T = 60


def clipped(log_probs_T, old_T, advantages_T, **options):
    """Of tokens that all train."""
    return surrogate_of(
        ClipLoss(**options),
        {
            "log_probs": log_probs_T, "old_log_probs": old_T, "rollout_log_probs": old_T, "advantages": advantages_T,
            "sample": torch.zeros(len(log_probs_T), dtype=torch.int64),
            "sample_len": torch.full((len(log_probs_T),), len(log_probs_T)),
        },
    )  # fmt: skip


def loop_loss(log_probs, old, advantages, mask, denominators, *, low, high, dual, weights):
    """The definition, one token at a time: (loss, gradient)."""
    loss, gradient = 0.0, [0.0] * len(mask)
    for t in range(len(mask)):
        if not mask[t]:
            continue
        ratio, a = math.exp(log_probs[t] - old[t]), advantages[t]
        term, slope = -ratio * a, -ratio * a
        bounded = -min(max(ratio, 1 - low), 1 + high) * a
        if bounded > term:
            term, slope = bounded, 0.0
        if dual is not None and a < 0 and term > -dual * a:
            term, slope = -dual * a, 0.0
        loss += term * weights[t] / denominators[t]
        gradient[t] = slope * weights[t] / denominators[t]
    return loss, np.array(gradient)


def columns(seed=0):
    rng = np.random.default_rng(seed)
    old = -rng.exponential(size=T)
    log_probs = old + rng.normal(scale=0.5, size=T)
    advantages = rng.normal(size=T)
    mask = rng.random(T) < 0.7
    denominators = np.repeat(loss_denominators(mask.reshape(6, 10).sum(1), kind="sample"), 10)
    weights = rng.random(T) * 2
    return log_probs, old, advantages, mask, denominators, weights


def ours(log_probs, old, advantages, mask, denominators, weights, *, low, high, dual):
    log_probs_T = torch.tensor(log_probs, requires_grad=True)
    mask_T = torch.tensor(mask)
    terms = clipped(
        log_probs_T, torch.tensor(old), torch.tensor(advantages), clip_low=low, clip_high=high, dual_clip=dual
    )  # fmt: skip
    loss = reduce_loss(
        terms.numerator_T, torch.tensor(denominators), mask_T, weight_T=torch.tensor(weights)
    )
    loss.backward()
    return loss.detach(), log_probs_T.grad


@pytest.mark.parametrize("dual", [None, 1.5])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.0, 0.0)])
def test_loss_and_gradient_match_the_loop(low, high, dual):
    log_probs, old, advantages, mask, denominators, weights = columns()
    loss, gradient = ours(
        log_probs, old, advantages, mask, denominators, weights, low=low, high=high, dual=dual
    )
    reference = loop_loss(
        log_probs, old, advantages, mask, denominators, low=low, high=high, dual=dual, weights=weights
    )  # fmt: skip
    FLOAT64_SAME_OP.check((loss, gradient), reference)
    wrong = loop_loss(
        log_probs, old, advantages, mask, denominators, low=low, high=high + 0.01, dual=dual, weights=weights
    )  # fmt: skip
    assert_notices("another upper bound", lambda: FLOAT64_SAME_OP.check((loss, gradient), wrong))


def test_clipped_tokens_are_those_without_gradient():
    log_probs, old, advantages, *_ = columns(1)
    log_probs_T = torch.tensor(log_probs, requires_grad=True)
    terms = clipped(
        log_probs_T, torch.tensor(old), torch.tensor(advantages), clip_low=0.2, clip_high=0.28, dual_clip=3.0
    )  # fmt: skip
    terms.numerator_T.sum().backward()
    EXACT.check(terms.is_clipped_T, log_probs_T.grad == 0)
    assert 0 < int(terms.is_clipped_T.sum()) < T


def test_an_unchanged_policy_has_loss_minus_advantage_and_no_clipping():
    log_probs = torch.tensor([-0.3, -7.0, 0.0])
    terms = clipped(
        log_probs, log_probs, torch.tensor([1.0, -2.0, 0.0]), clip_low=0.0, clip_high=0.0
    )
    EXACT.check(terms.numerator_T, torch.tensor([-1.0, 2.0, 0.0]))
    assert not terms.is_clipped_T.any()


@pytest.mark.parametrize("poisoned", ["numerator", "denominator", "weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_slot_that_is_not_kept_reaches_neither_loss_nor_gradient(poisoned, value):
    # Case 18. Masked tokens never come to a loss: packing leaves them out. Rejected ones end here.
    clean = {"numerator": [-0.5, -0.5], "denominator": [3.0, 3.0], "weight": [2.0, 1.0]}

    def loss_of(columns_, keep):
        tensors = {name: torch.tensor(column) for name, column in columns_.items()}
        numerator_T = tensors["numerator"].requires_grad_()
        loss = reduce_loss(
            numerator_T, tensors["denominator"], torch.tensor(keep), weight_T=tensors["weight"]
        )
        loss.backward()
        return loss.detach(), numerator_T.grad

    dirty = {**clean, poisoned: [clean[poisoned][0], value]}
    loss, gradient = loss_of(dirty, [True, False])
    alone_loss, alone_gradient = loss_of({name: c[:1] for name, c in clean.items()}, [True])
    EXACT.check((loss, gradient[:1]), (alone_loss, alone_gradient))
    EXACT.check(gradient[1], torch.tensor(0.0))
    with planted_fault("multiplying by the mask"):
        EXACT.check(torch.tensor([1.0, value]) * torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]))


def test_a_huge_ratio_gives_a_finite_loss():
    log_probs_T = torch.tensor([0.0, 0.0], requires_grad=True)
    terms = clipped(log_probs_T, torch.tensor([-500.0, -500.0]), torch.tensor([1.0, -1.0]))
    terms.numerator_T.sum().backward()
    assert terms.numerator_T.isfinite().all()
    assert log_probs_T.grad.isfinite().all()


def test_rejected_tokens_change_the_numerator_only():
    numerator = torch.tensor([1.0, 2.0, 4.0])
    keep = torch.tensor([True, False, True])
    EXACT.check(
        reduce_loss(numerator, torch.full((3,), 3.0), keep),
        torch.tensor(1 / 3 + 4 / 3, dtype=torch.float64),
    )


def test_an_infinite_denominator_of_a_masked_record_adds_nothing():
    numerator = torch.tensor([1.0, 5.0], requires_grad=True)
    loss = reduce_loss(numerator, torch.tensor([2.0, math.inf]), torch.tensor([True, False]))
    loss.backward()
    EXACT.check(loss, torch.tensor(0.5, dtype=torch.float64))
    EXACT.check(numerator.grad, torch.tensor([0.5, 0.0]))


@pytest.mark.parametrize("kind", ["token", "sample", "constant"])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_the_gradient_does_not_depend_on_accumulation(kind, accumulation):
    # Case 14: lengths [3, 17, 5, 40]; documented values: token-mean, or mean of sample means.
    lengths = np.array([3, 17, 5, 40])
    sample_T = np.repeat(np.arange(4), lengths)
    denominators = loss_denominators(
        lengths, kind=kind, constant=64 if kind == "constant" else None
    )
    log_probs_T = torch.linspace(-3, -0.1, 65, requires_grad=True)
    advantages_T = torch.tensor([1.0, -1.0, 0.5, 2.0])[sample_T]

    def accumulate(denominator_of):
        log_probs_T.grad = None
        for samples in np.split(np.arange(4), accumulation):
            mine = torch.tensor(np.flatnonzero(np.isin(sample_T, samples)))
            everything = torch.ones(len(mine), dtype=torch.bool)
            terms = clipped(log_probs_T[mine], log_probs_T.detach()[mine], advantages_T[mine])
            denominator_T = torch.tensor(denominator_of(samples))[torch.tensor(sample_T)[mine]]
            reduce_loss(terms.numerator_T, denominator_T, everything).backward()
        return log_probs_T.grad.clone()

    documented = {"token": 65.0, "sample": 4.0 * lengths[sample_T], "constant": 4 * 64.0}[kind]
    expected = -advantages_T.double() / torch.tensor(documented)
    FLOAT64_REFERENCE.check(accumulate(lambda _: denominators), expected)

    def per_micro_batch(samples):
        mine = np.where(np.isin(np.arange(4), samples), lengths, 0)
        return loss_denominators(mine, kind=kind, constant=64 if kind == "constant" else None)

    if accumulation > 1:
        with planted_fault("denominators per micro-batch"):
            FLOAT64_REFERENCE.check(accumulate(per_micro_batch), expected)


def test_a_silent_broadcast_is_an_error_under_test():
    # jaxtyping and beartype check the shapes of this room while tests run.
    four, one = torch.zeros(4), torch.zeros(1)
    with pytest.raises(TypeCheckError):
        LossTerms(
            log_probs_T=four, ratio_T=four, advantages_T=one, old_log_probs_T=four, rollout_log_probs_T=four
        )  # fmt: skip
    with pytest.raises(TypeCheckError):
        reduce_loss(four, one, torch.ones(4, dtype=torch.bool))
