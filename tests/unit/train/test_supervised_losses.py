"""Losses that do not only learn from rewards reach their aim, on a model that learns in milliseconds."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from helpers.packed_rows import PackedRows
from helpers.planted_fault import assert_notices
from helpers.tiny_models import tiny_model
from helpers.tolerance import FP32_MODEL
from helpers.train_batches import VOCAB, make_groups, make_sample, train_on

from zerogap.algorithms import Algorithm, DPOLoss, SFTLoss
from zerogap.config.train import TrainConfig
from zerogap.train import NativeTrainer, Teacher, TrainMetrics
from zerogap.types import Sample

STEPS = 12
SFT, DPO = Algorithm(loss=SFTLoss()), Algorithm(loss=DPOLoss())


def build(algorithm, *, learning_rate=3e-3, **helpers):
    config = TrainConfig(learning_rate=learning_rate, micro_batch_tokens=200)
    return NativeTrainer(
        tiny_model(), config, algorithm, total_steps=STEPS, **helpers
    )  # fmt: skip


def train(trainer: NativeTrainer, samples: Sequence[Sample]) -> list[TrainMetrics]:
    return [train_on(trainer, samples) for _ in range(STEPS)]


def answers(num_prompts=6, *, in_pairs=False) -> list[Sample]:
    rng = np.random.default_rng(0)
    made = []
    for g in range(num_prompts):
        prompt = rng.integers(0, VOCAB, 5).tolist()
        for name, reward in (("chosen", 1.0), ("rejected", 0.0)) if in_pairs else (("0", None),):
            answer = rng.integers(0, VOCAB, rng.integers(3, 9)).tolist()
            ids = {"group_id": f"g{g}", "rollout_id": f"g{g}/{name}", "reward": reward}
            made.append(Sample.demonstration(prompt, answer, **ids))
    return made


def check_falls(values: Sequence[float], share: float) -> None:
    """The last value is at most ``share`` of the first one."""
    assert values[-1] <= share * values[0], values


def test_sft_makes_reference_answers_likely():
    samples = answers()
    losses = [metrics.loss for metrics in train(build(SFT), samples)]
    check_falls(losses, 0.6)
    idle = train(build(SFT, learning_rate=0.0), samples)
    assert_notices("no step", lambda: check_falls([m.loss for m in idle], 0.6))


def test_the_loss_of_sft_is_the_mean_surprise_of_a_token():
    samples = answers()
    metrics = train_on(build(SFT), samples)
    surprise = [-log_prob[s.loss_mask] for s, log_prob in zip(samples, metrics.old_log_probs, strict=True)]  # fmt: skip
    np.testing.assert_allclose(metrics.loss, np.concatenate(surprise).mean(dtype=np.float64), rtol=1e-12)  # fmt: skip
    assert metrics.num_loss_tokens == sum(s.num_loss_tokens for s in samples)
    assert (metrics.gap, metrics.kl_to_rollout, metrics.corrections) == (None, None, None)


def check_prefers(first, last):
    assert (first.margin_mean, first.accuracy) == (0.0, 0.0)
    assert last.accuracy == 1.0
    assert last.margin_mean > 0.2
    assert last.chosen_reward_mean > last.rejected_reward_mean


def test_dpo_widens_the_margin_of_preferred_answers():
    samples = answers(in_pairs=True)
    trained = train(build(DPO, reference=tiny_model(), learning_rate=1e-3), samples)
    margins = [metrics.preferences.margin_mean for metrics in trained]
    check_prefers(trained[0].preferences, trained[-1].preferences)
    assert margins == sorted(margins)
    check_falls([metrics.loss for metrics in trained], 0.8)
    swapped = [s.scored(1.0 - s.reward) for s in samples]
    other_way = build(DPO, reference=tiny_model(), learning_rate=1e-3)
    worse = train(other_way, swapped)
    log_probs = [sum(np.nansum(lp) for lp in m.old_log_probs[::2]) for m in worse]
    assert log_probs[-1] < log_probs[0], "with rewards swapped the first answers lose"
    idle = train(build(DPO, reference=tiny_model(), learning_rate=0.0), samples)
    assert_notices("no step", lambda: check_prefers(idle[0].preferences, idle[-1].preferences))


def distillation(**settings) -> Algorithm:
    return Algorithm.preset("distillation", teacher={"path": "t", **settings})


@pytest.mark.parametrize(
    "settings",
    [{"top_k": 8, "direction": "reverse"}, {"top_k": 8, "direction": "forward"}, {"top_k": VOCAB}],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_distillation_over_likely_ids_brings_the_policy_to_its_teacher(settings):
    samples, target = make_groups(4, 4), tiny_model(seed=3)
    algorithm = distillation(estimator="top_k", **settings)
    before = {name: p.clone() for name, p in target.named_parameters()}

    def kls(learning_rate):
        teacher = Teacher(target, vocab_limit=VOCAB)
        trainer = build(algorithm, teacher=teacher, learning_rate=learning_rate)
        return [metrics.kl_to_teacher for metrics in train(trainer, samples)]

    check_falls(kls(3e-3), 0.9)
    assert all(torch.equal(p, before[name]) for name, p in target.named_parameters())
    assert_notices("no step", lambda: check_falls(kls(0.0), 0.9))


PROMPTS = [[5, 6, 7], [8, 9]]


def next_log_probs(model) -> torch.Tensor:
    """float64 [prompts, V]: of the token after each prompt."""
    ends = np.cumsum([len(prompt) for prompt in PROMPTS]) - 1
    with torch.no_grad():
        return PackedRows(PROMPTS).logits(model)[ends].double().log_softmax(-1)


def draw(model, num_draws: int, seed: int) -> list[Sample]:
    """One token after each prompt, drawn by the model itself."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (
        next_log_probs(model).exp().multinomial(num_draws, replacement=True, generator=generator)
    )
    return [
        make_sample(prompt, [token], group_id=f"g{g}", index=i)
        for g, prompt in enumerate(PROMPTS)
        for i, token in enumerate(drawn[g].tolist())
    ]


def test_distillation_of_what_was_drawn_brings_the_policy_to_its_teacher():
    target = tiny_model(seed=3)

    def kls(teacher_seed):
        teacher = Teacher(tiny_model(seed=teacher_seed), vocab_limit=VOCAB)
        trainer = build(distillation(estimator="sampled"), teacher=teacher)
        found = []
        for step in range(STEPS):
            log_probs = next_log_probs(trainer.model)
            kl = (log_probs.exp() * (log_probs - next_log_probs(target))).sum(-1).mean()
            found.append(float(kl))
            train_on(trainer, draw(trainer.model, 64, seed=step))
        return found

    check_falls(kls(3), 0.8)
    assert_notices("another teacher", lambda: check_falls(kls(4), 0.8))


def test_the_kl_of_what_was_drawn_is_policy_less_teacher():
    target = tiny_model(seed=3)
    trainer = build(distillation(), teacher=Teacher(target, vocab_limit=VOCAB))
    samples = draw(trainer.model, 16, seed=0)
    difference = next_log_probs(trainer.model) - next_log_probs(target)
    expected = [difference[int(s.group_id[1:]), s.token_ids[-1]].item() for s in samples]
    FP32_MODEL.check(train_on(trainer, samples).kl_to_teacher, float(np.mean(expected)))
