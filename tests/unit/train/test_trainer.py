import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.packed_rows import PackedRows
from helpers.planted_fault import assert_notices, planted_fault
from helpers.tiny_models import tiny_model, weights_of
from helpers.tolerance import EXACT, FP32_MODEL, GRADIENT_NORM
from helpers.train_batches import gradient_on, make_groups, make_sample, rewarded, train_on

from zerogap.algorithms import Algorithm, ClipLoss, CorrectionsConfig, KLConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import CheckpointError, ConfigError, NumericsError
from zerogap.train import NativeTrainer
from zerogap.types import Exclusion, Outcome

KL = Algorithm(kl=KLConfig(kind="k3", coefficient=0.1))


def build(model=None, *, algorithm=None, reference=None, total_steps=10, **train):
    config = TrainConfig(**{"learning_rate": 1e-3, "micro_batch_tokens": 60, **train})
    return NativeTrainer(
        model or tiny_model(), config, algorithm or Algorithm(),
        total_steps=total_steps, reference=reference,
    )  # fmt: skip


def test_step_zero_identity_holds_with_learning_rate_zero():
    model, samples = tiny_model(), make_groups()
    before = weights_of(model)
    trainer = build(model, learning_rate=0.0, weight_decay=0.1, updates_per_step=3)
    scored = trainer.score(samples)
    for _ in range(2):
        metrics = train_on(trainer, rewarded(samples))
        policy = metrics.policy
        assert (policy.ratio_mean, policy.ratio_min, policy.ratio_max) == (1.0, 1.0, 1.0)
        assert (policy.clip_fraction, policy.kl_to_old) == (0.0, 0.0)
        assert metrics.num_updates == 3
        masked = [np.where(s.loss_mask, x, np.nan) for s, x in zip(samples, scored, strict=True)]
        EXACT.check(list(metrics.old_log_probs), [m.astype(np.float32) for m in masked])
    EXACT.check(weights_of(model), before)


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.7])
def test_a_score_is_log_softmax_of_logits_over_temperature(temperature):
    # Cases 1 and 2: logits are divided, not log-probs, and the result is renormalised.
    model = tiny_model()
    (sample,) = make_groups(1, 1, temperature=temperature)
    (scored,) = build(model).score([sample])
    with torch.no_grad():
        logits_TV = PackedRows([sample.token_ids.tolist()]).logits(model)[:-1].double()
    start = sample.num_prompt_tokens
    targets = torch.from_numpy(sample.token_ids[1:].astype(np.int64))[:, None]

    def picked(log_probs_TV):
        return log_probs_TV.gather(1, targets)[start - 1 :, 0].float()

    FP32_MODEL.check(scored[start:], picked((logits_TV / temperature).log_softmax(-1)))
    assert np.isnan(scored[:start]).all()
    if temperature != 1.0:
        wrong = picked(logits_TV.log_softmax(-1) / temperature)
        assert_notices("log-probs divided", lambda: FP32_MODEL.check(scored[start:], wrong))


def test_greedy_samples_are_scored_at_temperature_one():
    sample = make_groups(1, 1, temperature=1.0)[0]
    greedy = make_groups(1, 1, temperature=0.0)[0]
    trainer = build()
    EXACT.check(trainer.score([greedy]), trainer.score([sample]))


def test_score_covers_sampled_tokens_that_do_not_train():
    sample = make_sample([1, 2], [3, 4, 5], loss_mask=[True, False, True])
    failed = sample.failed(Outcome.VERIFIER_FAILED, "boom")
    whole, also_whole = build().score([sample, failed])
    assert np.isfinite(whole[2:]).all()
    EXACT.check(also_whole, whole)


def test_what_pays_becomes_more_likely():
    model = tiny_model()
    samples = [make_sample([1, 2, 3], [10 + i, 20], index=i) for i in range(4)]
    samples = rewarded(samples, [1, 0, 0, 0])
    trainer = build(model, learning_rate=3e-3, updates_per_step=1)
    before = [np.nansum(x) for x in trainer.score(samples)]
    for _ in range(5):
        train_on(trainer, samples)
    after = [np.nansum(x) for x in trainer.score(samples)]
    assert after[0] > before[0]
    assert all(after[i] < before[i] for i in (1, 2, 3))


def test_later_updates_use_the_log_probs_of_the_start_of_the_step():
    samples = make_groups(4, 3)
    trainer = build(learning_rate=1e-2, updates_per_step=2)
    at_start = trainer.score(samples)
    metrics = train_on(trainer, rewarded(samples))
    for sample, old, scored in zip(samples, metrics.old_log_probs, at_start, strict=True):
        EXACT.check(old[sample.loss_mask], scored[sample.loss_mask])
    assert metrics.num_updates == 2
    assert metrics.policy.ratio_max != 1.0
    assert metrics.policy.kl_to_old > 0
    with planted_fault("log-probs after the first update"):
        later = trainer.score(samples)
        EXACT.check(
            metrics.old_log_probs[-1][samples[-1].loss_mask], later[-1][samples[-1].loss_mask]
        )


def test_the_gap_is_measured_against_the_engine_before_any_update():
    samples = make_groups()
    trainer = build()
    scored = trainer.score(samples)
    honest = [
        make_sample(
            s.token_ids[: s.num_prompt_tokens], s.token_ids[s.num_prompt_tokens :],
            group_id=s.group_id, loss_mask=s.loss_mask[s.num_prompt_tokens :],
            rollout_log_probs=x[s.num_prompt_tokens :], index=i,
        )
        for i, (s, x) in enumerate(zip(samples, scored, strict=True))
    ]  # fmt: skip
    metrics = train_on(trainer, rewarded(honest))
    assert (metrics.gap.mean, metrics.gap.max, metrics.gap.k3) == (0.0, 0.0, 0.0)
    assert metrics.kl_to_rollout == 0.0
    again = train_on(trainer, rewarded(honest))
    assert again.gap.mean > 0, "the weights have moved, so the samples are stale"


def test_excluded_samples_change_nothing_but_the_count():
    samples = make_groups(2, 3)
    failed = make_sample([1, 2], [3], group_id="g0", index=9, outcome=Outcome.INFRASTRUCTURE_FAILED)
    models = [tiny_model(), tiny_model()]
    plain = train_on(build(models[0]), rewarded(samples))
    mixed = train_on(build(models[1]), [failed, *rewarded(samples)])
    EXACT.check(weights_of(models[1]), weights_of(models[0]))
    assert (mixed.loss, mixed.num_samples) == (plain.loss, plain.num_samples)
    assert mixed.excluded == {Exclusion.INVALID_OUTCOME: 1}
    assert np.isnan(mixed.old_log_probs[0]).all()
    assert len(mixed.old_log_probs) == 7


def test_a_group_without_signal_moves_no_weight_by_itself():
    model = tiny_model()
    before = weights_of(model)
    samples = make_groups(1, 4)
    metrics = train_on(build(model), rewarded(samples, [0.7] * 4))
    EXACT.check(weights_of(model), before)
    assert (metrics.loss, metrics.grad_norm) == (0.0, 0.0)
    assert metrics.num_rows_without_gradient == metrics.num_rows
    assert metrics.policy.num_tokens == sum(s.num_loss_tokens for s in samples)


def moments_of(trainer):
    return {n: t.clone() for n, t in trainer.state_dict().items() if n.startswith("optimizer.")}


@pytest.mark.parametrize("reason", ["equal rewards", "all rejected"])
def test_a_step_without_a_signal_moves_neither_weights_nor_moments(reason):
    corrections = CorrectionsConfig(veto=0.5) if reason == "all rejected" else CorrectionsConfig()
    trainer = build(weight_decay=0.1)
    train_on(trainer, rewarded(make_groups(2, 3)))
    trainer.use_corrections(corrections)
    weights, state = weights_of(trainer.model), moments_of(trainer)
    samples = make_groups(2, 3, seed=1)
    if reason == "equal rewards":
        samples = rewarded(samples, [0.7] * 6)
    else:
        # The trainer finds every token far less likely than the engine says.
        sure = [replace(s, rollout_log_probs=s.rollout_log_probs * 0) for s in samples]
        samples = rewarded(sure)
    metrics = train_on(trainer, samples)
    EXACT.check(weights_of(trainer.model), weights)
    EXACT.check(moments_of(trainer), state)
    assert (metrics.grad_norm, metrics.num_updates_without_signal) == (0.0, 1)

    def check_after_a_signal():
        train_on(trainer, rewarded(make_groups(2, 3, seed=2)))
        EXACT.check(weights_of(trainer.model), weights)

    trainer.use_corrections(CorrectionsConfig())
    assert_notices("weights that move", check_after_a_signal)


def test_only_the_updates_with_a_signal_are_applied():
    samples = make_groups(2, 3)
    rewards = [0.0] * 3 + [0.0, 1.0, 0.5]
    both, alone = build(updates_per_step=2), build()
    metrics = train_on(both, rewarded(samples, rewards))
    train_on(alone, rewarded(samples[3:], rewards[3:]))
    assert (metrics.num_updates, metrics.num_updates_without_signal) == (2, 1)
    EXACT.check(weights_of(both.model), weights_of(alone.model))
    EXACT.check(moments_of(both), moments_of(alone))


@pytest.mark.parametrize("algorithm", [
    Algorithm(loss=ClipLoss(denominator="constant", constant_denominator=20)),
    Algorithm(loss=ClipLoss(denominator="sample")),
    *(Algorithm.preset(name) for name in ("gspo", "cispo", "rloo", "sapo", "dppo", "drpo")),
], ids=lambda algorithm: f"{algorithm.loss.kind}, {getattr(algorithm.loss, 'ratio', None)}, {algorithm.loss.denominator}")  # fmt: skip
def test_the_gradient_is_the_sum_of_those_in_which_others_are_masked(algorithm):
    samples = [replace(s, outcome=Outcome.TRUNCATED) for s in rewarded(make_groups(2, 4))]
    # Of the denominator "token", which counts tokens that train, each part has a share.
    is_token = algorithm.loss.denominator == "token"
    num_tokens = sum(s.num_loss_tokens for s in samples)

    def gradient(left_out, leave_out=lambda s: s.masked()):
        given = [leave_out(s) if i in left_out else s for i, s in enumerate(samples)]
        found = gradient_on(build(algorithm=algorithm), given).tensors
        share = sum(s.num_loss_tokens for s in given) / num_tokens if is_token else 1.0
        return {name: tensor.double() * share for name, tensor in found.items()}

    def check(leave_out):
        parts = gradient({1, 6}, leave_out), gradient({0, 2, 3, 4, 5, 7}, leave_out)
        total = {name: parts[0][name] + parts[1][name] for name in parts[0]}
        GRADIENT_NORM.check(total, gradient(set()))

    check(lambda s: s.masked())
    assert_notices(
        "masked samples leave their group", lambda: check(lambda s: s.failed(Outcome.ABORTED, ""))
    )


def test_weights_that_are_not_finite_stop_the_step_and_name_the_sample():
    model, samples = tiny_model(), make_groups(1, 2)
    trainer = build(model)
    with torch.no_grad():
        model.norm.weight[3] = math.nan
    before = weights_of(model)
    with pytest.raises(NumericsError, match=r"log-prob of rollout g0/\d, position \d+ is nan"):
        train_on(trainer, rewarded(samples))
    EXACT.check(weights_of(model), before)


@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_a_step_that_fails_after_one_of_its_updates_says_so(preset):
    algorithm = Algorithm.preset(preset)
    trainer, samples = (
        build(algorithm=algorithm, updates_per_step=2, learning_rate=1e38),
        rewarded(make_groups(2, 3)),
    )
    before = weights_of(trainer.model)
    trainer.model.norm.weight.data[3] = math.nan
    with pytest.raises(NumericsError):
        train_on(trainer, samples)
    assert not trainer.is_inconsistent
    trainer.model.load_state_dict(before)
    with pytest.raises(NumericsError):
        train_on(trainer, samples)
    assert trainer.is_inconsistent
    whole = build(algorithm=algorithm, updates_per_step=2)
    train_on(whole, samples)
    assert not whole.is_inconsistent


def test_a_failed_step_leaves_no_gradient_for_the_next():
    samples, models = make_groups(2, 2), [tiny_model(), tiny_model()]
    first, second = build(models[0]), build(models[1])
    with torch.no_grad():
        healthy = float(models[1].norm.weight[3])
        models[1].norm.weight[3] = math.nan
        with pytest.raises(NumericsError):
            train_on(second, rewarded(samples))
        models[1].norm.weight[3] = healthy
    for trainer in (first, second):
        train_on(trainer, rewarded(samples))
    EXACT.check(weights_of(models[1]), weights_of(models[0]))


def test_a_frozen_copy_has_kl_zero_at_first_and_more_later():
    samples = make_groups()
    trainer = build(algorithm=KL, reference=tiny_model(), learning_rate=1e-2)
    first = train_on(trainer, rewarded(samples))
    second = train_on(trainer, rewarded(samples))
    assert first.kl_to_reference == 0.0
    assert second.kl_to_reference > 0


def test_with_a_kl_penalty_every_group_learns():
    samples = rewarded(make_groups(2, 2), [0.5] * 4)
    trainer = build(algorithm=KL, reference=tiny_model(seed=1))
    metrics = train_on(trainer, samples)
    assert metrics.num_rows_without_gradient == 0
    assert metrics.grad_norm > 0


@pytest.mark.parametrize(("algorithm", "has_reference"), [(KL, False), (Algorithm(), True)])
def test_a_reference_goes_with_a_kl_penalty_and_with_nothing_else(algorithm, has_reference):
    with pytest.raises(ConfigError, match=r"a reference, and.* give both or neither"):
        build(algorithm=algorithm, reference=tiny_model() if has_reference else None)


def test_metrics_count_rows_and_time():
    samples = make_groups(2, 3)
    metrics = train_on(build(micro_batch_tokens=1000), rewarded(samples))
    alone = train_on(build(micro_batch_tokens=1000, share_prompts=False), rewarded(samples))
    assert metrics.num_rows + metrics.num_rows_saved == alone.num_rows
    assert metrics.num_micro_batches == 1
    assert metrics.micro_batch_fill == metrics.num_rows / 1000
    assert metrics.saved_fraction == metrics.num_rows_saved / alone.num_rows
    assert (alone.saved_fraction, alone.num_rows_repeated) == (0.0, 0)
    cut = train_on(build(micro_batch_tokens=40), rewarded(samples))
    assert cut.num_rows - cut.num_rows_repeated == metrics.num_rows
    assert cut.wasted_fraction == cut.num_rows_repeated / cut.num_rows > 0
    assert metrics.wasted_fraction == 0
    assert metrics.num_loss_tokens == sum(s.num_loss_tokens for s in samples)
    assert {"pack", "forward", "backward", "optimizer"} <= metrics.seconds.keys()
    assert all(seconds >= 0 for seconds in metrics.seconds.values())


def train_steps(trainer, steps):
    results = []
    for step in steps:
        samples = make_groups(2, 3, seed=step)
        metrics = train_on(trainer, rewarded(samples, seed=step))
        results.append((metrics.loss, metrics.grad_norm, metrics.learning_rate, metrics.policy))
    return results


def test_a_resumed_trainer_goes_on_bit_for_bit():
    settings = {"schedule": "cosine", "warmup_steps": 1, "weight_decay": 0.1, "updates_per_step": 2}
    model = tiny_model()
    trainer = build(model, **settings)
    train_steps(trainer, [0, 1])
    saved = weights_of(model), {name: t.clone() for name, t in trainer.state_dict().items()}
    expected, noise = train_steps(trainer, [2, 3]), torch.rand(3)
    resumed_model = tiny_model(seed=9)
    resumed = build(resumed_model, **settings)
    resumed_model.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert train_steps(resumed, [2, 3]) == expected
    EXACT.check(torch.rand(3), noise)
    EXACT.check(weights_of(resumed_model), weights_of(model))
    EXACT.check(
        {n: t for n, t in resumed.state_dict().items() if n != "torch_rng_state"},
        {n: t for n, t in trainer.state_dict().items() if n != "torch_rng_state"},
    )
    forgetful_model = tiny_model(seed=9)
    forgetful = build(forgetful_model, **settings)
    forgetful_model.load_state_dict(saved[0])
    with planted_fault("moments and schedule forgotten"):
        train_steps(forgetful, [2, 3])
        EXACT.check(weights_of(forgetful_model), weights_of(model))


@pytest.mark.parametrize("updates_per_step", [1, 3])
def test_a_gradient_alone_is_what_the_steps_first_update_uses(updates_per_step):
    samples = rewarded(make_groups())
    asked, stepping = (build(updates_per_step=updates_per_step) for _ in range(2))
    before = weights_of(asked.model)
    found = gradient_on(asked, samples)
    copies = {name: gradient.clone() for name, gradient in found.tensors.items()}
    EXACT.check(weights_of(asked.model), before)
    assert found.num_updates == updates_per_step

    grad_norms, used = [], []
    update = stepping._optimizer.update

    def watch(learning_rate):
        used.append({n: g.clone() for n, g in stepping._optimizer.gradients().items()})
        grad_norms.append(update(learning_rate))
        return grad_norms[-1]

    stepping._optimizer.update = watch
    metrics = train_on(stepping, samples)
    EXACT.check(copies, used[0])
    assert found.grad_norm == grad_norms[0]
    if updates_per_step == 1:
        assert found.loss == metrics.loss
    else:
        assert_notices("the gradient of the second update", lambda: EXACT.check(copies, used[1]))


def test_asking_for_a_gradient_leaves_no_trace_in_the_next_step():
    samples = rewarded(make_groups())
    asked, other = build(), build()
    gradient_on(asked, samples)
    assert train_on(asked, samples).loss == train_on(other, samples).loss
    EXACT.check(weights_of(asked.model), weights_of(other.model))


def test_a_state_that_is_none_is_refused():
    trainer = build()
    with pytest.raises(CheckpointError, match=r"lacks \['num_steps', 'torch_rng_state'\]"):
        trainer.load_state_dict({"optimizer.num_updates": torch.tensor(1)})
    state = trainer.state_dict()
    with pytest.raises(CheckpointError, match="1 entries"):
        trainer.load_state_dict({**state, "optimizer.exp_avg.stranger": torch.zeros(1)})


# ------------------------------------------------------------ frozen parameters

FROZEN = ("embed_tokens.weight", "layers.0.")


def half_frozen(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(FROZEN))
    return model


@pytest.mark.parametrize("recompute", [False, True])
def test_frozen_parameters_keep_their_bits_and_the_others_train_as_ever(recompute):
    samples = rewarded(make_groups(2, 3))
    frozen, whole = (
        build(model, recompute=recompute) for model in (half_frozen(tiny_model()), tiny_model())
    )
    gradient = {name: g.clone() for name, g in gradient_on(whole, samples).tensors.items()}
    found = gradient_on(frozen, samples).tensors
    trained = {name: g for name, g in gradient.items() if not name.startswith(FROZEN)}
    EXACT.check(dict(found), trained)
    before = weights_of(frozen.model)
    for step in (0, 1):
        train_on(frozen, rewarded(make_groups(2, 3, seed=step)))
    for name, weight in weights_of(frozen.model).items():
        assert torch.equal(weight, before[name]) == name.startswith(FROZEN), name
    assert not any(name.split(".", 2)[-1].startswith(FROZEN) for name in frozen.state_dict())


def test_a_resumed_trainer_of_some_parameters_goes_on_bit_for_bit():
    model = half_frozen(tiny_model())
    trainer = build(model)
    train_steps(trainer, [0])
    saved = weights_of(model), {name: t.clone() for name, t in trainer.state_dict().items()}
    expected = train_steps(trainer, [1])
    again = half_frozen(tiny_model(seed=9))
    resumed = build(again)
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert train_steps(resumed, [1]) == expected
    EXACT.check(weights_of(again), weights_of(model))
    with pytest.raises(CheckpointError, match="same parameters frozen"):
        build().load_state_dict(saved[1])


# ------------------------------------------------------------ gradient hooks


@pytest.mark.parametrize("tie", [True, False])
def test_hooks_see_every_gradient_where_it_lies(tie):
    """After each micro-batch's backward pass, and nothing is copied for them."""
    samples = rewarded(make_groups(2, 3))
    plain, hooked = (
        build(tiny_model(tie_word_embeddings=tie), micro_batch_tokens=40) for _ in range(2)
    )
    expected = gradient_on(plain, samples).tensors
    seen = {name: [] for name, _ in hooked.model.named_parameters()}
    for name, parameter in hooked.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: seen[name].append((p.grad.data_ptr(), p.grad.clone()))
        )
    EXACT.check(dict(gradient_on(hooked, samples).tensors), dict(expected))
    for name, calls in seen.items():
        assert len(calls) > 1, f"{name}: a call a micro-batch"
        assert len({address for address, _ in calls}) == 1, name
        EXACT.check(calls[-1][1], expected[name])
        with planted_fault("a hook that sees nothing of the last micro-batch"):
            EXACT.check(calls[-2][1], expected[name])
