import math

import numpy as np
import pytest
import torch
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_REFERENCE

from zerogap.algorithms import kl_estimate
from zerogap.errors import NumericsError

FORMULA = {
    "k1": (lambda d: d, lambda d: 1.0),
    "k2": (lambda d: d * d / 2, lambda d: d),
    "k3": (lambda d: math.exp(-d) - 1 + d, lambda d: 1 - math.exp(-d)),
}


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_value_and_gradient_match_the_loop(kind):
    rng = np.random.default_rng(0)
    log_probs, ref = -rng.exponential(size=30), -rng.exponential(size=30)
    mask = rng.random(30) < 0.7
    log_probs_T = torch.tensor(log_probs, requires_grad=True)
    estimate_T = kl_estimate(log_probs_T, torch.tensor(ref), torch.tensor(mask), kind=kind)
    estimate_T.sum().backward()
    value, slope = FORMULA[kind]
    expected = [value(d) if m else 0.0 for d, m in zip(log_probs - ref, mask, strict=True)]
    slopes = [slope(d) if m else 0.0 for d, m in zip(log_probs - ref, mask, strict=True)]
    FLOAT64_REFERENCE.check((estimate_T, log_probs_T.grad), (np.array(expected), np.array(slopes)))
    nearby = [value(1.01 * d) if m else 0.0 for d, m in zip(log_probs - ref, mask, strict=True)]
    assert_notices(
        "a difference one percent larger",
        lambda: FLOAT64_REFERENCE.check(estimate_T, np.array(nearby)),
    )


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_unbiased_estimators_have_the_kl_as_expectation(kind):
    # Exactly: weighted by the policy over a whole vocabulary instead of sampled.
    policy, reference = torch.randn(2, 50, dtype=torch.float64).log_softmax(-1)
    estimate = kl_estimate(policy, reference, torch.ones(50, dtype=torch.bool), kind=kind)
    expected = torch.nn.functional.kl_div(reference, policy, reduction="sum", log_target=True)
    FLOAT64_REFERENCE.check((policy.exp() * estimate).sum(), expected)


def test_k3_is_small_and_positive_near_the_reference():
    log_probs = torch.tensor([-1.0, -1.0])
    estimate = kl_estimate(
        log_probs, log_probs + torch.tensor([1e-6, 0.0]), torch.ones(2, dtype=torch.bool), kind="k3"
    )
    assert estimate[0] >= 0
    EXACT.check(estimate[1], torch.tensor(0.0))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_a_masked_nan_reaches_neither_value_nor_gradient(kind):
    log_probs_T = torch.tensor([-1.0, math.nan], requires_grad=True)
    estimate_T = kl_estimate(
        log_probs_T, torch.tensor([-1.5, math.nan]), torch.tensor([True, False]), kind=kind
    )
    estimate_T.sum().backward()
    assert estimate_T.isfinite().all()
    assert log_probs_T.grad.isfinite().all()
    EXACT.check(log_probs_T.grad[1], torch.tensor(0.0))


def test_a_nan_reference_that_counts_names_its_record():
    with pytest.raises(NumericsError, match="reference log-prob of rollout r1"):
        kl_estimate(
            torch.tensor([-1.0]), torch.tensor([math.nan]), torch.tensor([True]), kind="k3",
            name_token=lambda t: "rollout r1",
        )  # fmt: skip
