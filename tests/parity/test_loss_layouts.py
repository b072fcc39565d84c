"""Every kind of loss has the same gradient in every layout, and at step 0 all ratios are 1."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers.loss_cases import CASES, check_gradient, gradients_of, samples_for, score, trainer_of
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT
from helpers.train_batches import train_on

from zerogap.algorithms import DPPOLoss, presets
from zerogap.errors import NumericsError
from zerogap.train import objective as objective_module
from zerogap.train import planning as planning_module
from zerogap.train import policy_gradient as policy_gradient_module

LAYOUTS = {
    "one sample a micro-batch": {"micro_batch_tokens": 1, "share_prompts": False},
    "small micro-batches, shared": {"micro_batch_tokens": 40},
    "one micro-batch, not shared": {"share_prompts": False},
}


@cache
def packed(name):
    """(gradient, metrics) of a case in one micro-batch: what every other layout is compared with."""
    return gradients_of(CASES[name])


def test_each_preset_has_a_case():
    assert {case.preset for case in CASES.values()} >= presets().keys()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_the_layout_changes_neither_gradient_nor_log_probs(name, layout):
    case = CASES[name]
    gradient, metrics = packed(name)
    other, other_metrics = gradients_of(case, **LAYOUTS[layout])
    # Forward passes do not depend on the layout: bit for bit.
    EXACT.check(list(other_metrics.old_log_probs), list(metrics.old_log_probs))
    assert metrics.grad_norm > 1e-3
    check_gradient(case, other, gradient)


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_samples_changes_no_gradient(name):
    case = CASES[name]
    samples = samples_for(case.algorithm)
    order = np.random.default_rng(0).permutation(len(samples))
    gradient, metrics = packed(name)
    other, other_metrics = gradients_of(case, [samples[i] for i in order], micro_batch_tokens=50)
    EXACT.check(list(other_metrics.old_log_probs), [metrics.old_log_probs[i] for i in order])
    check_gradient(case, other, gradient)


@pytest.mark.parametrize("name", ["grpo, corrected", "gspo, corrected", "distillation, forward"])
def test_weights_that_are_normalised_in_a_micro_batch_would_be_noticed(name, monkeypatch):
    gradient, _ = packed(name)
    honest = objective_module.reduce_loss

    def by_micro_batch(numerator_T, denominator_T, keep_T, *, weight_T=None):
        if weight_T is not None:
            weight_T = weight_T / weight_T.mean()
        return honest(numerator_T, denominator_T, keep_T, weight_T=weight_T)

    monkeypatch.setattr(objective_module, "reduce_loss", by_micro_batch)
    with planted_fault("weights with mean 1 in each micro-batch"):
        check_gradient(CASES[name], gradients_of(CASES[name], micro_batch_tokens=40)[0], gradient)


@pytest.mark.parametrize(
    "name",
    ["grpo", "gspo", "sapo", "scalerl", "grpo, entropy", "ppo", "sft", "distillation, top_k"],
)
def test_denominators_of_micro_batches_would_be_noticed(name, monkeypatch):
    gradient, _ = packed(name)
    honest = objective_module.reduce_loss

    def alone(numerator_T, denominator_T, keep_T, **weights):
        return honest(numerator_T, denominator_T * 0 + len(keep_T), keep_T, **weights)

    monkeypatch.setattr(objective_module, "reduce_loss", alone)
    with planted_fault("each micro-batch divides by its own tokens"):
        check_gradient(CASES[name], gradients_of(CASES[name], micro_batch_tokens=40)[0], gradient)


def test_preferences_of_another_update_would_be_noticed(monkeypatch):
    case = CASES["dpo"]
    gradient, _ = packed("dpo")
    honest = policy_gradient_module.weigh_preferences

    def stale(plan, log_probs_S, update, loss):
        return honest(plan, log_probs_S + 0.01 * (plan.tokens.sample_S % 2), update, loss)

    monkeypatch.setattr(policy_gradient_module, "weigh_preferences", stale)
    with planted_fault("sums of other weights"):
        check_gradient(case, gradients_of(case)[0], gradient)


RATIOS = [name for name, case in CASES.items() if case.algorithm.has_policy_ratio]


@pytest.mark.parametrize("num_updates", [1, 3])
@pytest.mark.parametrize("name", RATIOS)
def test_step_zero_identity(name, num_updates):
    # Learning rate 0, old log-probs of the trainer: the ratios stay 1, whatever else is on.
    settings = {"old_log_probs": "trainer", "updates_per_step": num_updates}
    _, metrics = gradients_of(CASES[name], micro_batch_tokens=50, **settings)
    policy, algorithm = metrics.policy, CASES[name].algorithm
    assert (policy.ratio_mean, policy.ratio_min, policy.ratio_max) == (1.0, 1.0, 1.0)
    assert policy.kl_to_old == 0.0
    assert metrics.num_updates == num_updates
    # These compare with the engine, whose samples are 0.2 nats a token off.
    assert (policy.clip_fraction > 0.0) == isinstance(algorithm.loss, DPPOLoss)
    assert (metrics.off_policy_fraction > 0.0) == (algorithm.corrections.off_policy_kl is not None)
    samples = samples_for(algorithm)
    exact = [replace(s, rollout_log_probs=x) for s, x in zip(samples, score(samples), strict=True)]
    _, metrics = gradients_of(CASES[name], exact, micro_batch_tokens=50, **settings)
    assert (metrics.policy.clip_fraction, metrics.off_policy_fraction) == (0.0, 0.0)
    if algorithm.corrections.mask is None and num_updates == 1:
        _, bypassed = gradients_of(CASES[name], **settings | {"old_log_probs": "rollout"})
        assert bypassed.policy.ratio_max > 1.1


def trained(trainer, case, steps):
    """(weights of policy and critic, losses) after steps on samples in another order each."""
    samples, losses = samples_for(case.algorithm), []
    for step in steps:
        order = np.random.default_rng(step).permutation(len(samples))
        metrics = train_on(trainer, [samples[i] for i in order])
        losses.append((metrics.loss, metrics.grad_norm, metrics.critic, metrics.preferences))
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}, losses


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_trainer_goes_on_bit_for_bit(name):
    settings = {"learning_rate": 1e-3, "updates_per_step": 2, "micro_batch_tokens": 60}
    case = CASES[name]
    trainer = trainer_of(case, **settings)
    weights, _ = trained(trainer, case, [0, 1])
    state = {name: t.clone() for name, t in trainer.state_dict().items()}
    expected = trained(trainer, case, [2, 3])
    resumed = trainer_of(case, **settings)
    resumed.model.load_state_dict(weights)
    resumed.load_state_dict(state)
    found = trained(resumed, case, [2, 3])
    EXACT.check(found[0], expected[0])
    assert found[1] == expected[1]
    EXACT.check(without_noise(resumed.state_dict()), without_noise(trainer.state_dict()))


def without_noise(state):
    return {name: t for name, t in state.items() if name != "torch_rng_state"}


def test_a_resumed_critic_that_forgot_would_be_noticed():
    settings = {"learning_rate": 1e-3, "micro_batch_tokens": 60}
    case = CASES["ppo"]
    trainer = trainer_of(case, **settings)
    weights, _ = trained(trainer, case, [0])
    expected, _ = trained(trainer, case, [1])
    forgetful = trainer_of(case, **settings)
    fresh = {n: t for n, t in forgetful.state_dict().items() if n.startswith("critic.")}
    forgetful.model.load_state_dict(weights)
    forgetful.load_state_dict({**trainer.state_dict(), **fresh, "num_steps": torch.tensor(1)})
    with planted_fault("the critic of step 0"):
        EXACT.check(trained(forgetful, case, [1])[0], expected)


@pytest.mark.parametrize("name", CASES)
def test_what_is_masked_may_be_anything(name):
    # Log-probs of prompts and dropped tokens are NaN, in some samples all of them: no NaN reaches a gradient.
    case = CASES[name]
    samples = samples_for(case.algorithm)
    cut = replace(samples[0], rollout_id="cut", loss_mask=np.zeros(len(samples[0]), bool))
    gradient, metrics = gradients_of(case, [*samples, cut])
    assert all(g.isfinite().all() for g in gradient.values())
    check_gradient(case, gradient, packed(name)[0])
    assert np.isnan(metrics.old_log_probs[-1]).all()


@pytest.mark.parametrize("name", ["grpo, corrected", "ppo", "reinforce_pp", "dpo"])
def test_masked_tokens_that_take_part_would_be_noticed(name, monkeypatch):
    class Leaky(planning_module.StepTokens):
        @property
        def trains_S(self):
            return self.index.spread(self.who.is_kept_B)

    monkeypatch.setattr(planning_module, "StepTokens", Leaky)
    with pytest.raises(NumericsError, match=r"of rollout g\d/\d, position 0 is nan"):
        gradients_of(CASES[name])
