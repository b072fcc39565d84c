import math

import numpy as np
import pytest
import torch
from helpers.planted_fault import assert_notices, planted_fault
from helpers.tolerance import EXACT, FLOAT64_REFERENCE
from jaxtyping import TypeCheckError

from zerogap.algorithms import clipped_surrogate, loss_denominators, reduce_loss
from zerogap.errors import NumericsError

T = 60


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
    log_probs_T = torch.tensor(log_probs, dtype=torch.float32, requires_grad=True)
    mask_T = torch.tensor(mask)
    terms = clipped_surrogate(
        log_probs_T, torch.tensor(old, dtype=torch.float32), torch.tensor(advantages, dtype=torch.float32),
        mask_T, clip_low=low, clip_high=high, dual_clip=dual,
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
    FLOAT64_REFERENCE.check((loss, gradient), reference)
    wrong = loop_loss(
        log_probs, old, advantages, mask, denominators, low=low, high=high + 0.01, dual=dual, weights=weights
    )  # fmt: skip
    assert_notices("another upper bound", lambda: FLOAT64_REFERENCE.check((loss, gradient), wrong))


def test_clipped_tokens_are_those_without_gradient():
    log_probs, old, advantages, mask, *_ = columns(1)
    log_probs_T = torch.tensor(log_probs, requires_grad=True)
    terms = clipped_surrogate(
        log_probs_T, torch.tensor(old), torch.tensor(advantages), torch.tensor(mask),
        clip_low=0.2, clip_high=0.28, dual_clip=3.0,
    )  # fmt: skip
    terms.numerator_T.sum().backward()
    EXACT.check(
        terms.is_clipped_T & torch.tensor(mask), (log_probs_T.grad == 0) & torch.tensor(mask)
    )
    assert 0 < int(terms.is_clipped_T.sum()) < T
    assert not (terms.is_clipped_T & ~torch.tensor(mask)).any()


def test_an_unchanged_policy_has_loss_minus_advantage_and_no_clipping():
    log_probs = torch.tensor([-0.3, -7.0, 0.0])
    terms = clipped_surrogate(
        log_probs, log_probs, torch.tensor([1.0, -2.0, 0.0]), torch.ones(3, dtype=torch.bool),
        clip_low=0.0, clip_high=0.0,
    )  # fmt: skip
    EXACT.check(terms.numerator_T, torch.tensor([-1.0, 2.0, 0.0]))
    assert not terms.is_clipped_T.any()


@pytest.mark.parametrize("poisoned", ["log_probs", "old_log_probs", "advantages"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_masked_slot_reaches_neither_loss_nor_gradient(poisoned, value):
    # Case 18: old_log_probs [0, NaN], mask [1, 0] equals the loss of the single token.
    clean = {"log_probs": [-0.5, -0.5], "old_log_probs": [-0.6, -0.5], "advantages": [2.0, 1.0]}

    def loss_of(columns_, mask):
        tensors = {name: torch.tensor(column) for name, column in columns_.items()}
        log_probs_T = tensors["log_probs"].requires_grad_()
        mask_T = torch.tensor(mask)
        terms = clipped_surrogate(
            log_probs_T, tensors["old_log_probs"], tensors["advantages"], mask_T,
            clip_low=0.2, clip_high=0.2,
        )  # fmt: skip
        loss = reduce_loss(
            terms.numerator_T,
            torch.ones(len(mask)),
            mask_T,
            weight_T=torch.tensor([1.0, math.nan][: len(mask)]),
        )
        loss.backward()
        return loss.detach(), log_probs_T.grad

    dirty = {**clean, poisoned: [clean[poisoned][0], value]}
    loss, gradient = loss_of(dirty, [True, False])
    alone_loss, alone_gradient = loss_of({name: c[:1] for name, c in clean.items()}, [True])
    EXACT.check((loss, gradient[:1]), (alone_loss, alone_gradient))
    EXACT.check(gradient[1], torch.tensor(0.0))
    with planted_fault("multiplying by the mask"):
        EXACT.check(torch.tensor([1.0, value]) * torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("poisoned", [0, 1, 2])
def test_a_nan_that_counts_names_its_record(poisoned):
    columns_ = [torch.tensor([-0.5, -0.5]) for _ in range(3)]
    columns_[poisoned][1] = math.nan
    with pytest.raises(NumericsError, match=r"of rollout r7, position 1 is nan \(1 of 2"):
        clipped_surrogate(
            *columns_, torch.ones(2, dtype=torch.bool), clip_low=0.2, clip_high=0.2,
            name_token=lambda t: f"rollout r7, position {t}",
        )  # fmt: skip


def test_a_huge_ratio_gives_a_finite_loss():
    log_probs_T = torch.tensor([0.0, 0.0], requires_grad=True)
    terms = clipped_surrogate(
        log_probs_T, torch.tensor([-500.0, -500.0]), torch.tensor([1.0, -1.0]),
        torch.ones(2, dtype=torch.bool), clip_low=0.2, clip_high=0.2,
    )  # fmt: skip
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
            terms = clipped_surrogate(
                log_probs_T[mine], log_probs_T.detach()[mine], advantages_T[mine], everything,
                clip_low=0.2, clip_high=0.2,
            )  # fmt: skip
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
        clipped_surrogate(
            four, one, four, torch.ones(4, dtype=torch.bool), clip_low=0.2, clip_high=0.2
        )
