"""Promises 6, 7 and 9 hold, and each fails on the faults that it is there for."""

from copy import deepcopy

import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.recipes import TINY_POLICY, run_config

from zerogap.certify import Subjects, check_optimizer, check_resume
from zerogap.certify import checks as checks_module
from zerogap.certify.checks import Checks
from zerogap.certify.learning import LEARNING_RATE
from zerogap.obs import Phase
from zerogap.run.export import export_policy
from zerogap.run.policy import load_policy
from zerogap.train.optimizer import Optimizer
from zerogap.weights import digest_weights, named_weights


def learner(subjects):
    return subjects.trainer(learning_rate=LEARNING_RATE, schedule="constant", updates_per_step=1, old_log_probs="trainer")  # fmt: skip


def optimizer(subjects, samples):
    return check_optimizer(learner(subjects), subjects.config.train, samples)


def resume(subjects, samples):
    return check_resume(lambda: learner(subjects), samples)


def trained_export(subjects, samples):
    return next(check for promise, _, check in Checks(subjects).all() if promise == 9)(Phase())


@pytest.mark.parametrize("check", [optimizer, resume, trained_export])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_sound_trainer_passes_and_the_weights_are_as_before(check, dtype, samples):
    config = run_config(model=TINY_POLICY | {"dtype": dtype})
    subjects = Subjects(policy=load_policy(config.model, seed=0), config=config)
    weights = named_weights(subjects.policy.model)
    before = digest_weights(weights).hex
    finding = check(subjects, samples)
    assert finding.is_kept, finding.figure
    assert digest_weights(weights).hex == before


def test_an_optimizer_that_skips_one_norm_is_noticed(subjects, samples, monkeypatch):
    apply = Optimizer._apply

    def skipping(self, names, *rest):
        apply(self, [n for n in names if n != "layers.1.input_norm.weight"], *rest)

    monkeypatch.setattr(Optimizer, "_apply", skipping)
    finding = optimizer(subjects, samples)
    assert not finding.is_kept
    assert "1 of 18 tensors" in finding.figure
    assert "layers.1.input_norm.weight in step 1: it has not moved" in finding.figure


def test_adamw_without_bias_correction_is_noticed(subjects, samples, monkeypatch):
    fused = torch._fused_adamw_

    def uncorrected(parameters, gradients, first, second, max_second, steps, **named):
        late = [step + 1_000_000 for step in steps]
        fused(parameters, gradients, first, second, max_second, late, **named)

    monkeypatch.setattr(torch, "_fused_adamw_", uncorrected)
    finding = optimizer(subjects, samples)
    assert not finding.is_kept
    assert "18 of 18 tensors do not move as AdamW" in finding.figure


@pytest.mark.parametrize("changed", [{"betas": (0.5, 0.999)}, {"weight_decay": 0.9}])
def test_settings_that_the_optimizer_ignores_are_noticed(subjects, samples, changed):
    told = subjects.config.train.model_copy(update=changed)
    with planted_fault("the recipe says otherwise than the optimizer does"):
        finding = check_optimizer(learner(subjects), told, samples)
        assert finding.is_kept, finding.figure


def test_a_checkpoint_with_the_moments_of_the_step_before_is_noticed(
    subjects, samples, monkeypatch
):
    update, state_dict = Optimizer.update, Optimizer.state_dict

    def remembering(self, learning_rate):
        self.older = deepcopy(state_dict(self))
        return update(self, learning_rate)

    def stale(self):
        state = state_dict(self)
        older = getattr(self, "older", state)
        return {n: older[n] if n.startswith("exp_avg") else t for n, t in state.items()}

    monkeypatch.setattr(Optimizer, "update", remembering)
    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "state_dict", stale)
        finding = resume(subjects, samples)
    assert not finding.is_kept
    assert "differs from the uninterrupted step in: weights" in finding.figure


def test_an_export_of_the_embeddings_of_load_time_is_noticed(subjects, samples, monkeypatch):
    embeddings = named_weights(subjects.policy.model)["embed_tokens.weight"]
    loaded = embeddings.detach().clone()

    def stale(policy, folder):
        trained = embeddings.detach().clone()
        with torch.no_grad():
            embeddings.copy_(loaded)
            export_policy(policy, folder)
            embeddings.copy_(trained)

    monkeypatch.setattr(checks_module, "export_policy", stale)
    finding = trained_export(subjects, samples)
    assert not finding.is_kept
    assert "1 of 18 tensors: embed_tokens.weight is not the trained one" in finding.figure
