"""One trainer for each kind of loss, with samples of the sort that it takes, and the gradients of one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch

from helpers.tiny_models import tiny_model
from helpers.tolerance import GRADIENT, GRADIENT_NORM
from helpers.train_batches import VOCAB, make_groups, rewarded, train_on
from zerogap.algorithms import (
    Algorithm,
    CriticAdvantage,
    DRPOLoss,
    MaxRLAdvantage,
    TokenBaselineAdvantage,
)
from zerogap.config.train import TrainConfig
from zerogap.train import NativeTrainer, Teacher, TrainMetrics
from zerogap.types import Sample, Source

IN_REWARD = {"kind": "k1", "coefficient": 0.1, "place": "reward"}
IN_LOSS = {"kind": "k3", "coefficient": 0.1}
CORRECTIONS = {
    "weight": {"high": 1.2, "normalize": True},
    "mask": {"low": 0.75, "high": 1.4},
    "veto": 0.65,
    "off_policy_kl": 0.02,
}


@dataclass(frozen=True)
class Case:
    """An algorithm, and keys of [train]."""

    algorithm: Algorithm
    train: Mapping[str, object] = field(default_factory=dict)
    preset: str | None = None


def case(
    preset: str, *, train: Mapping[str, object] | None = None, **tables: Mapping[str, object]
) -> Case:
    """A case of a preset, changed by tables."""
    return Case(Algorithm.preset(preset, **tables), train or {}, preset)


BYPASS = {"old_log_probs": "rollout"}
TEACHER = {"path": "t"}
CASES = {
    "grpo": case("grpo"),
    "grpo, corrected": case("grpo", kl=IN_LOSS, corrections=CORRECTIONS),
    "grpo, bypass, off-policy mask": case("grpo", loss={"dual_clip": 2.0}, corrections={"off_policy_kl": 0.02}, train=BYPASS),
    "grpo, kl in the reward": case("grpo", kl=IN_REWARD),
    "grpo, k2 in the loss, bypass": case("grpo", kl={"kind": "k2", "coefficient": 0.1}, train=BYPASS),
    "grpo, entropy": case("grpo", entropy={"coefficient": 0.01}),
    "grpo, top half of the entropies": case("grpo", entropy={"top_quantile": 0.5}),
    "grpo, top half of the entropies, bypass": case("grpo", entropy={"top_quantile": 0.5}, train=BYPASS),
    "grpo, teacher too": case("grpo", teacher={**TEACHER, "weight": 0.3}),
    "dr_grpo": case("dr_grpo", loss={"constant_denominator": 30}, train=BYPASS),
    "dapo": case("dapo", train=BYPASS),
    "gspo": case("gspo", loss={"clip_low": 0.02, "clip_high": 0.02}, train=BYPASS),
    "gspo, corrected": case("gspo", loss={"clip_low": 0.02, "clip_high": 0.02}, corrections=CORRECTIONS),
    "sequence ratio, cispo": case("cispo", loss={"ratio": "sequence", "ratio_low": 0.6, "ratio_high": 1.5, "denominator": "group"}, train=BYPASS),
    "cispo": case("cispo", loss={"ratio_low": 0.8, "ratio_high": 1.2}, train=BYPASS),
    "sapo": case("sapo", train=BYPASS),
    "dppo": case("dppo", loss={"max_divergence_low": 0.01, "max_divergence_high": 0.01}),
    "dppo, kl": case("dppo", loss={"divergence": "kl", "max_divergence_low": 1e-4, "max_divergence_high": 1e-4}),
    "drpo": case("drpo", loss={"delta": 0.5}),
    "rloo": case("rloo", train=BYPASS),
    "lite_ppo": case("lite_ppo"),
    "gdpo": case("gdpo"),
    "mipu": case("mipu", corrections={"weight": {"high": 1.2}}, acceptance={"tolerance": 10.0}),
    "scalerl": case("scalerl", train=BYPASS),
    "maxrl": case("maxrl"),
    "otb": case("otb"),
    "reinforce_pp": case("reinforce_pp", kl=IN_REWARD),
    "reinforce_pp, baseline": case("reinforce_pp", advantage={"baseline": "group", "discount": 0.95}),
    "ppo": case("ppo", advantage={"discount": 0.98, "gae_lambda": 0.9, "value_clip": 0.0}),
    "ppo, kl in the reward": case("ppo", kl=IN_REWARD, advantage={"std": "none"}, train=BYPASS),
    "distillation, sampled": case("distillation", teacher=TEACHER),
    "distillation, top_k": case("distillation", teacher={**TEACHER, "estimator": "top_k", "top_k": 5}),
    "distillation, forward": case(
        "distillation",
        teacher={**TEACHER, "estimator": "top_k", "top_k": 5, "direction": "forward"},
        corrections={"weight": {"level": "geometric"}},
    ),
    "sdpo, sampled": case("sdpo", advantage={"kind": "group"}, teacher={"estimator": "sampled", "weight": 0.5}),
    "sdpo": case("sdpo", teacher={"top_k": 5}),
    "sdft": case("sdft", teacher={"top_k": 5, "refresh": {"every": 1}}),
    "policy with a hint": case("grpo", teacher={"hint": {"kind": "answer"}, "estimator": "top_k", "top_k": 5}),
    "sft": Case(Algorithm.model_validate({"loss": {"kind": "sft"}})),
    "dpo": Case(Algorithm.model_validate({"loss": {"kind": "dpo", "beta": 0.3, "label_smoothing": 0.1}})),
}  # fmt: skip


def samples_for(algorithm: Algorithm) -> list[Sample]:
    """Nine samples of three prompts: sampled near the policy (0.2 nats off), or reference answers, preferred or not."""
    samples = rewarded(make_groups(3, 3, seed=3), seed=1)
    if isinstance(algorithm.advantage, MaxRLAdvantage):
        samples = [s.scored(abs(s.reward)) for s in samples]
    if not algorithm.loss.trains_on_completions:
        return [as_reference_answer(s, reward=float(i % 3 == 0)) for i, s in enumerate(samples)]
    if algorithm.has_hints:
        samples = hinted(samples)
    rng = np.random.default_rng(4)
    return [
        replace(s, rollout_log_probs=np.minimum(x + rng.normal(0, 0.2, len(s)), 0.0))
        for s, x in zip(samples, _log_probs(), strict=True)
    ]


@cache
def _log_probs() -> list[np.ndarray]:
    """Of the samples of ``samples_for``: rewards and hints change none of them."""
    return score(make_groups(3, 3, seed=3))


def hinted(samples: Sequence[Sample]) -> list[Sample]:
    """The same samples, for most of which the teacher reads another prompt: one of two, so that siblings differ."""
    prompts = (tuple(range(7, 30)), tuple(range(50, 61)), None)
    return [replace(s, teacher_prompt_ids=prompts[(i * i) % 5 % 3]) for i, s in enumerate(samples)]


def as_reference_answer(sample: Sample, *, reward: float) -> Sample:
    """The same tokens as nobody's: no log-prob and no version."""
    is_answer = sample.source == Source.POLICY
    return replace(
        sample,
        source=np.where(is_answer, Source.DEMONSTRATION, sample.source),
        rollout_log_probs=np.full(len(sample), np.nan),
        weight_version=np.full(len(sample), -1),
        reward=reward,
    )


def score(samples: Sequence[Sample]) -> list[np.ndarray]:
    """By the model that ``trainer_of`` trains."""
    trainer = NativeTrainer(tiny_model("qwen3"), TrainConfig(), total_steps=1)
    return trainer.score(samples)


def trainer_of(case: Case, **train: object) -> NativeTrainer:
    """A trainer of ``tiny_model("qwen3")``; reference, teacher and critic are other models.

    The weights stay as they are, unless a learning rate is given.
    """
    settings = {"learning_rate": 0.0, "max_grad_norm": 1e9, "micro_batch_tokens": 10_000}
    trainer = NativeTrainer(
        tiny_model("qwen3"),
        TrainConfig(**settings | dict(case.train) | train),
        case.algorithm,
        total_steps=10,
        reference=tiny_model("qwen3", seed=1) if case.algorithm.needs_reference else None,
        teacher=Teacher(tiny_model("qwen3", seed=2), vocab_limit=VOCAB)
        if case.algorithm.loads_teacher
        else None,
    )
    return with_values(trainer)


def with_values(trainer: NativeTrainer) -> NativeTrainer:
    """The same trainer, whose critic, if it has one, knows some values: a head of zeros gives its trunk no gradient."""
    if trainer.critic is not None:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            trainer.critic.model.value_head.normal_(0.0, 0.2, generator=generator)
    return trainer


def gradients_of(
    case: Case, samples: Sequence[Sample] | None = None, **train: object
) -> tuple[dict[str, torch.Tensor], TrainMetrics]:
    """(gradient by name, a critic's among them; metrics) of one step."""
    trainer = trainer_of(case, **train)
    metrics = train_on(trainer, samples_for(case.algorithm) if samples is None else samples)
    found = {name: p.grad for name, p in trainer.model.named_parameters()}
    if trainer.critic is not None:
        found |= {f"critic.{n}": p.grad for n, p in trainer.critic.model.named_parameters()}
    return found, metrics


def check_gradient(
    case: Case, gradient: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """To 1e-6 of each tensor's norm, and of its largest element too unless terms of opposite signs cancel in single elements."""
    loss, advantage = case.algorithm.loss, case.algorithm.advantage
    # Answers to one prompt; or tokens of one completion whose terms differ in sign.
    has_both_signs = isinstance(advantage, TokenBaselineAdvantage | CriticAdvantage)
    GRADIENT_NORM.check(gradient, expected)
    if not (loss.compares_answers or has_both_signs or isinstance(loss, DRPOLoss)):
        GRADIENT.check(gradient, expected)
