import math

import numpy as np
import pytest
import torch
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_REFERENCE, FLOAT64_SAME_OP
from pydantic import ValidationError

from zerogap.algorithms import KLConfig, kl_estimate, kl_loss
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


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_the_loss_term_and_its_gradient_match_the_loop(kind):
    rng = np.random.default_rng(1)
    log_probs, old, ref = -rng.exponential(size=(3, 30))
    log_probs_T = torch.tensor(log_probs, requires_grad=True)
    everything = torch.ones(30, dtype=torch.bool)
    estimate_T = kl_estimate(log_probs_T, torch.tensor(ref), everything, kind=kind)
    term_T = kl_loss(estimate_T, (log_probs_T - torch.tensor(old)).exp(), kind=kind)
    term_T.sum().backward()
    ratios = [math.exp(p - o) for p, o in zip(log_probs, old, strict=True)]
    d = log_probs - ref
    terms = np.array([r * FORMULA[kind][0](x) for r, x in zip(ratios, d, strict=True)])
    # FORMULAS.md, 16: k3 with a live ratio and k2 with a detached one both have r d as slope.
    slopes = np.array([r * x for r, x in zip(ratios, d, strict=True)])
    FLOAT64_SAME_OP.check((term_T, log_probs_T.grad), (terms, slopes))
    assert_notices(
        "no importance ratio", lambda: FLOAT64_SAME_OP.check(log_probs_T.grad, torch.tensor(d))
    )


def expected_gradients(kind, policy_logits, old, reference):
    """By the policy's logits, over tokens of the old policy: (with the ratio, without it, KL(pi, ref), KL(ref, pi))."""
    logits = policy_logits.clone().requires_grad_()
    policy = logits.log_softmax(-1)
    everything = torch.ones(len(logits), dtype=torch.bool)
    estimate = kl_estimate(policy, reference, everything, kind=kind)
    weighted = (old.exp() * kl_loss(estimate, (policy - old).exp(), kind=kind)).sum()
    plain = (old.exp() * estimate).sum()
    kl = (policy.exp() * (policy - reference)).sum()
    reverse = (reference.exp() * (reference - policy)).sum()
    return [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (weighted, plain, kl, reverse)]  # fmt: skip


@pytest.mark.parametrize("kind", ["k2", "k3"])
@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_a_kl_in_the_loss_has_the_gradient_of_the_kl_whoever_drew_the_tokens(kind, drift):
    """Without the ratio k2 is off as soon as the policy has moved, and k3 has the gradient of KL(ref, pi) even before."""
    generator = torch.Generator().manual_seed(0)
    logits, noise, ref = torch.randn(3, 50, dtype=torch.float64, generator=generator)
    old = (logits + drift * noise).log_softmax(-1)
    weighted, plain, kl, reverse = expected_gradients(kind, logits, old, ref.log_softmax(-1))
    FLOAT64_SAME_OP.check(weighted, kl)
    if drift or kind == "k3":
        assert (plain - kl).norm() > 0.1 * kl.norm()
        assert_notices("no importance ratio", lambda: FLOAT64_SAME_OP.check(plain, kl))
    if not drift and kind == "k3":
        FLOAT64_SAME_OP.check(plain, reverse)


def test_k1_in_the_loss_is_refused_since_its_gradient_is_noise_around_zero():
    logits, ref = torch.randn(2, 50, dtype=torch.float64)
    policy = logits.log_softmax(-1)
    _, plain, kl, _ = expected_gradients("k1", logits, policy, ref.log_softmax(-1))
    FLOAT64_SAME_OP.check(plain, torch.zeros_like(plain))
    assert kl.norm() > 0.01
    with pytest.raises(
        ValidationError, match=r'the gradient of k1 has expectation 0.*set kind = "k3"'
    ):
        KLConfig(kind="k1", coefficient=0.1)
    assert KLConfig(kind="k1", coefficient=0.1, place="reward").is_in_reward
