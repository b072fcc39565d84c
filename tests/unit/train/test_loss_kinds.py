"""What the kinds of loss need before the first update, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.loss_cases import (
    CASES,
    IN_REWARD,
    as_reference_answer,
    case,
    gradients_of,
    samples_for,
    score,
    trainer_of,
)
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model, weights_of
from helpers.tolerance import EXACT
from helpers.train_batches import VOCAB, make_groups, rewarded, train_on
from pydantic import ValidationError

from zerogap.algorithms import Algorithm, CorrectionsConfig, KLConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import CheckpointError, ConfigError, DataError
from zerogap.train import NativeTrainer, Teacher
from zerogap.train import old_log_probs as old_log_probs_module
from zerogap.train.metrics import OldLogProbAudit

WEIGHTED = case("grpo", corrections={"weight": {}})


def phases_of(of, samples=None, *, exact_version=None, **train):
    """(rows computed in each phase, metrics) of one step; its progress must end at its total and never go back."""
    seen = []
    trainer = trainer_of(of, micro_batch_tokens=60, **train)
    metrics = train_on(
        trainer,
        samples or samples_for(of.algorithm),
        exact_version=exact_version,
        on_progress=seen.append,
    )
    assert seen[-1].rows_done == seen[-1].rows_total
    assert all(progress.rows_done <= progress.rows_total for progress in seen)
    assert [p.rows_done for p in seen] == sorted({p.rows_done for p in seen})
    assert sum(p.phase == "update" for p in seen) == metrics.num_micro_batches
    rows, before = {}, 0
    for progress in seen:
        rows[progress.phase] = rows.get(progress.phase, 0) + progress.rows_done - before
        before = progress.rows_done
    return rows, metrics


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", {"update"}),
        ("grpo, corrected", {"old", "reference", "update"}),
        ("grpo, kl in the reward", {"old", "reference", "update"}),
        ("grpo, bypass, off-policy mask", {"update"}),
        ("grpo, k2 in the loss, bypass", {"reference", "update"}),
        ("grpo, entropy", {"update"}),
        ("grpo, teacher too", {"old", "teacher", "update"}),
        ("gspo", {"update"}),
        ("gspo, corrected", {"old", "update"}),
        ("dppo", {"update"}),
        ("otb", {"old", "update"}),
        ("grpo, top half of the entropies", {"old", "update"}),
        ("grpo, top half of the entropies, bypass", {"old", "update"}),
        ("ppo, kl in the reward", {"reference", "values", "update", "critic"}),
        ("reinforce_pp", {"old", "reference", "update"}),
        ("ppo", {"values", "update", "critic"}),
        ("distillation, sampled", {"old", "teacher", "update"}),
        ("distillation, top_k", {"update"}),
        ("sft", {"update"}),
        ("dpo", {"reference", "preferences", "update"}),
    ],
)
def test_only_what_a_loss_needs_is_computed(name, expected):
    rows, metrics = phases_of(CASES[name])
    assert rows == dict.fromkeys(expected, metrics.num_rows)


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("grpo", True),
        ("grpo, bypass, off-policy mask", False),
        ("distillation, top_k", False),
        ("sft", False),
    ],
)
def test_later_updates_have_old_log_probs_computed_where_there_is_a_ratio(name, asks):
    rows, metrics = phases_of(CASES[name], updates_per_step=3)
    assert ("old" in rows) == asks
    assert metrics.num_updates == 3


def drawn_by_the_policy():
    samples = samples_for(Algorithm())
    return [replace(s, rollout_log_probs=x) for s, x in zip(samples, score(samples), strict=True)]


def test_corrections_take_the_engines_log_probs_where_those_are_the_trainers():
    samples = drawn_by_the_policy()
    scored, plain = phases_of(WEIGHTED, samples)
    taken, metrics = phases_of(WEIGHTED, samples, exact_version=0)
    assert 0 < taken["old"] < scored["old"]
    assert metrics.audit.num_taken > 0
    assert metrics.audit.num_different == 0
    # The first update's own forward compares the rest.
    assert metrics.audit.num_audited == metrics.num_loss_tokens
    assert metrics.corrections == plain.corrections
    assert metrics.corrections.weight_after.max == metrics.corrections.weight_after.min == 1.0
    assert metrics.gap.num_tokens == metrics.num_loss_tokens


def test_a_difference_that_is_seen_before_corrections_has_everything_scored():
    samples = samples_for(Algorithm())
    scored, plain = phases_of(WEIGHTED, samples)
    found, metrics = phases_of(WEIGHTED, samples, exact_version=0)
    assert found == scored
    assert metrics.audit.num_taken == 0
    assert metrics.audit.num_different > 0
    assert metrics.corrections == plain.corrections
    with pytest.MonkeyPatch.context() as blind, planted_fault("the engine's are taken unseen"):
        blind.setattr(old_log_probs_module, "compare", lambda *_: OldLogProbAudit())
        _, believed = phases_of(WEIGHTED, samples, exact_version=0)
        EXACT.check(believed.corrections.k3, plain.corrections.k3)


def test_bypass_takes_the_ratio_against_the_engine_and_still_measures_the_gap():
    _, metrics = phases_of(CASES["dapo"])
    assert metrics.gap.mean > 0.05
    assert metrics.policy.ratio_max > 1.2
    # Mismatch enters through the ratio: corrections see none.
    assert metrics.corrections.weight_before.max == metrics.corrections.weight_before.min == 1.0
    assert metrics.corrections.k3 == 0.0


def test_statistics_of_corrections_are_reported_when_all_are_off():
    _, off = phases_of(CASES["grpo"])
    _, on = phases_of(case("grpo", corrections={"weight": {"high": 1.1}}))
    assert off.corrections.k3 == on.corrections.k3 > 0
    assert off.corrections.weight_before == on.corrections.weight_before
    assert (off.corrections.weight_after.min, off.corrections.fraction_kept) == (1.0, 1.0)
    assert on.corrections.weight_after.max == 1.1


def test_rejection_changes_no_denominator():
    # A veto that every sample fails leaves a loss of 0, not of 0 / 0.
    gradient, metrics = gradients_of(case("grpo", corrections={"veto": 0.999}))
    assert metrics.corrections.fraction_kept == 0.0
    assert (metrics.loss, metrics.grad_norm) == (0.0, 0.0)
    assert all(not g.any() for g in gradient.values())


def test_a_step_without_an_engine_has_no_gap():
    for name in ("sft", "dpo"):
        metrics = gradients_of(CASES[name])[1]
        assert metrics.gap is metrics.corrections is metrics.kl_to_rollout is metrics.groups is None


def test_a_critic_warms_up_alone_and_then_the_policy_learns():
    ppo = case("ppo", advantage={"warmup_steps": 2, "learning_rate": 1e-3})
    trainer = trainer_of(ppo, learning_rate=1e-2, weight_decay=0.1, updates_per_step=2)
    samples = samples_for(ppo.algorithm)
    policy, values = weights_of(trainer.model), weights_of(trainer.critic.model)
    found = [train_on(trainer, samples) for _ in range(2)]
    EXACT.check(weights_of(trainer.model), policy)
    assert [m.critic.is_alone for m in found] == [True, True]
    assert [m.grad_norm for m in found] == [0.0, 0.0]
    assert found[1].critic.loss < found[0].critic.loss
    assert not torch.equal(weights_of(trainer.critic.model)["value_head"], values["value_head"])
    third = train_on(trainer, samples)
    assert not third.critic.is_alone
    assert third.grad_norm > 0
    with planted_fault("the policy moves"):
        EXACT.check(weights_of(trainer.model), policy)


def test_a_fresh_critic_knows_nothing_and_learns():
    trainer = NativeTrainer(
        tiny_model(), TrainConfig(learning_rate=0.0), Algorithm.preset("ppo", advantage={"learning_rate": 1e-2}),
        total_steps=9,
    )  # fmt: skip
    samples = rewarded(make_groups(2, 3))
    explained = [train_on(trainer, samples).critic.explained_variance for _ in range(8)]
    assert explained[0] == 0.0
    assert explained[-1] > 0.3


TOP_K = {"loss": {"kind": "reinforce"}, "advantage": {"kind": "none"}, "teacher": {"path": "t", "estimator": "top_k"}}  # fmt: skip


@pytest.mark.parametrize(
    ("tables", "has_teacher", "message"),
    [
        (TOP_K, False, r"a \[teacher\] table was given no teacher"),
        ({}, True, r"no \[teacher\] table was given a teacher"),
        ({"loss": {"kind": "dpo"}}, False, "needs a reference, and no reference"),
    ],
)
def test_models_go_with_what_needs_them(tables, has_teacher, message):
    teacher = Teacher(tiny_model(), vocab_limit=VOCAB) if has_teacher else None
    algorithm = Algorithm.model_validate(tables)
    with pytest.raises(ConfigError, match=message):
        NativeTrainer(tiny_model(), TrainConfig(), algorithm, total_steps=1, teacher=teacher)


SFT, DPO = {"loss": {"kind": "sft"}}, {"loss": {"kind": "dpo"}}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({**SFT, "corrections": {"veto": 0.1}}, "corrections: loss.kind = 'sft'"),
        ({**SFT, "advantage": {"kind": "maxrl"}}, "advantage: loss.kind = 'sft'"),
        ({**SFT, "teacher": {"path": "t"}}, "teacher: loss.kind = 'sft'"),
        ({**DPO, "kl": {"kind": "k3", "coefficient": 0.1}}, "kl: loss.kind = 'dpo'"),
        ({**DPO, "entropy": {"coefficient": 0.1}}, "entropy.coefficient = 0.1: loss.kind = 'dpo'"),
        ({**TOP_K, "corrections": {"off_policy_kl": 0.1}}, 'off_policy_kl = 0.1: .*advantage.kind = "none"'),
        ({"advantage": {"kind": "none"}}, "rewards train nothing and there is no teacher"),
        ({**TOP_K, "kl": {"kind": "k1", "coefficient": 0.1, "place": "reward"}}, 'kl.place = "reward": .*advantage.kind = "none"'),
        ({"kl": {"kind": "k1", "coefficient": 0.1}}, "the gradient of k1 has expectation 0"),
    ],
)  # fmt: skip
def test_what_a_loss_cannot_use_is_refused(tables, message):
    with pytest.raises(ValidationError, match=message):
        Algorithm.model_validate(tables)


@pytest.mark.parametrize(
    ("name", "corrections", "message"),
    [
        ("sft", {"veto": 0.1}, "corrections: loss.kind = 'sft'"),
        ("distillation, top_k", {"off_policy_kl": 0.1}, "off_policy_kl = 0.1"),
    ],
)
def test_a_trainer_refuses_new_corrections_that_its_loss_cannot_use(name, corrections, message):
    trainer = trainer_of(CASES[name])
    with pytest.raises(ConfigError, match=message):
        trainer.use_corrections(CorrectionsConfig(**corrections))


def test_answers_that_nobody_prefers_are_refused():
    samples = samples_for(CASES["dpo"].algorithm)
    equal = [replace(s, reward=1.0) for s in samples]
    without = [replace(s, reward=None) for s in samples]
    for given, message in ((equal, "no pair of answers"), (without, "has no reward")):
        with pytest.raises(DataError, match=message):
            train_on(trainer_of(CASES["dpo"]), given)


@pytest.mark.parametrize(("value_clip", "is_clipped"), [(1e-3, True), (0.0, False)])
def test_values_are_held_near_those_of_the_start_of_the_step(value_clip, is_clipped):
    ppo = case("ppo", advantage={"value_clip": value_clip, "learning_rate": 1e-2})
    several, one = (
        train_on(trainer_of(ppo, updates_per_step=n), samples_for(ppo.algorithm)) for n in (3, 1)
    )
    assert (several.critic.clip_fraction > 0) is is_clipped
    assert one.critic.clip_fraction == 0, "in a first update no value has moved"


def test_a_critics_state_goes_with_a_critic():
    with_critic, without = trainer_of(CASES["ppo"]), trainer_of(CASES["grpo"])
    with pytest.raises(CheckpointError, match="has a critic"):
        without.load_state_dict(with_critic.state_dict())
    with pytest.raises(CheckpointError, match="critic's state does not belong"):
        with_critic.load_state_dict(without.state_dict())


def test_a_kl_in_the_reward_has_no_gradient_of_its_own():
    # At the reference itself the penalty is 0: rewards, and so the gradient, are those without it.
    plain = trainer_of(CASES["grpo"])
    samples = samples_for(Algorithm())
    train_on(plain, samples)
    penalised = NativeTrainer(
        tiny_model("qwen3"), TrainConfig(learning_rate=0.0, max_grad_norm=1e9, micro_batch_tokens=10_000),
        Algorithm(kl=KLConfig(**IN_REWARD)), total_steps=1, reference=tiny_model("qwen3"),
    )  # fmt: skip
    metrics = train_on(penalised, samples)
    assert metrics.kl_to_reference == 0.0
    EXACT.check(
        {n: p.grad for n, p in penalised.model.named_parameters()},
        {n: p.grad for n, p in plain.model.named_parameters()},
    )
    moved, _ = gradients_of(CASES["grpo, kl in the reward"])
    with planted_fault("another reference"):
        EXACT.check(moved, {n: p.grad for n, p in plain.model.named_parameters()})


def test_reference_answers_and_samples_have_the_same_log_probs():
    sampled = samples_for(Algorithm())
    answers = [as_reference_answer(s, reward=0.0) for s in sampled]
    _, of_samples = gradients_of(CASES["grpo"], sampled)
    _, of_answers = gradients_of(CASES["sft"], answers)
    EXACT.check(list(of_answers.old_log_probs), list(of_samples.old_log_probs))
    assert np.isfinite(of_answers.loss)


OVER_THE_STEP = {"grpo, corrected", "grpo, top half of the entropies", "grpo, top half of the entropies, bypass", "gdpo", "mipu", "gspo, corrected", "distillation, forward", "lite_ppo", "scalerl", "otb", "reinforce_pp", "reinforce_pp, baseline", "ppo", "ppo, kl in the reward", "sdpo, sampled", "sdpo", "sdft"}  # fmt: skip
"""A teacher follows the policy once a step; weights, normalisation, quantiles, baselines of the old policy or values are decided once over all updates; one step for each update would decide others."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in OVER_THE_STEP])
def test_several_updates_are_as_many_steps_against_the_log_probs_of_the_first(name):
    """To the bit: an update has its own samples, denominators, preferences and ratios; old log-probs are the step's."""
    of, settings = CASES[name], {"learning_rate": 1e-3, "max_grad_norm": 1.0}
    samples = samples_for(of.algorithm)
    whole = trainer_of(of, updates_per_step=3, **settings)
    trains_on_completions = of.algorithm.loss.trains_on_completions
    if trains_on_completions and of.train.get("old_log_probs") != "rollout":
        scored = zip(samples, whole.score(samples), strict=True)
        samples = [replace(sample, rollout_log_probs=column) for sample, column in scored]
    train_on(whole, samples)

    def by_steps(order, **train):
        trainer = trainer_of(of, **settings, **train)
        for group in order:
            train_on(trainer, [s for s in samples if s.group_id == group])
        return weights_of(trainer.model)

    groups = list(dict.fromkeys(sample.group_id for sample in samples))
    bypass = {"old_log_probs": "rollout"} if trains_on_completions else {}
    EXACT.check(weights_of(whole.model), by_steps(groups, **bypass))
    with planted_fault("another order of the updates"):
        EXACT.check(weights_of(whole.model), by_steps(groups[::-1], **bypass))


def everything_after(trainer):
    """The policy's weights and all that the trainer keeps, including a critic's weights."""
    state = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    return weights_of(trainer.model) | state


@pytest.mark.parametrize("name", CASES)
def test_a_trainer_goes_on_from_its_state_to_the_bit(name):
    of, settings = CASES[name], {"learning_rate": 1e-3, "warmup_steps": 4, "updates_per_step": 2}
    samples = samples_for(of.algorithm)
    whole, resumed = trainer_of(of, **settings), trainer_of(of, **settings)
    train_on(whole, samples)
    kept, weights = everything_after(whole), weights_of(whole.model)
    state = {entry: tensor for entry, tensor in kept.items() if entry not in weights}
    resumed.model.load_state_dict(weights)
    resumed.load_state_dict(state)
    EXACT.check(everything_after(resumed), kept)
    train_on(whole, samples)
    train_on(resumed, samples)
    EXACT.check(everything_after(resumed), everything_after(whole))
    moved = next(entry for entry in state if "exp_avg_sq" in entry)
    with planted_fault("a moment of 0"):
        EXACT.check(kept | {moved: torch.zeros_like(kept[moved])}, kept)
