"""One trainer for each kind of loss, with samples of the sort that it takes, and the gradients of one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from zerogap.config.corrections import CorrectionsConfig, MaskCorrection, WeightCorrection
from zerogap.config.loss import (
    CISPOLossConfig,
    CriticConfig,
    DAPOLossConfig,
    DistillationLossConfig,
    DPOLossConfig,
    DrGRPOLossConfig,
    GRPOLossConfig,
    GSPOLossConfig,
    KLConfig,
    LossConfig,
    PPOLossConfig,
    ReinforcePlusPlusLossConfig,
    RLOOLossConfig,
    SFTLossConfig,
)

from helpers.tiny_models import tiny_model
from helpers.tolerance import FP32_MODEL_GRADIENT, GRADIENT, GRADIENT_NORM
from helpers.train_batches import VOCAB, make_groups, rewarded, train_on
from zerogap.config.train import TrainConfig
from zerogap.train import NativeTrainer, Teacher, TrainMetrics
from zerogap.types import Sample, Source

IN_REWARD = KLConfig(kind="k1", coefficient=0.1, place="reward")
IN_LOSS = KLConfig(kind="k3", coefficient=0.1)
CORRECTIONS = CorrectionsConfig(
    weight=WeightCorrection(high=1.2, normalize=True),
    mask=MaskCorrection(low=0.75, high=1.4),
    veto=0.65,
    off_policy_kl=0.02,
)


@dataclass(frozen=True)
class Case:
    """A loss and how it is asked for."""

    loss: LossConfig
    corrections: CorrectionsConfig = field(default_factory=CorrectionsConfig)
    train: Mapping[str, object] = field(default_factory=dict)


CASES = {
    "grpo": Case(GRPOLossConfig()),
    "grpo, corrected": Case(GRPOLossConfig(kl=IN_LOSS), CORRECTIONS),
    "grpo, bypass, off-policy mask": Case(
        GRPOLossConfig(dual_clip=2.0), CorrectionsConfig(off_policy_kl=0.02), {"old_log_probs": "rollout"}
    ),
    "grpo, kl in the reward": Case(GRPOLossConfig(kl=IN_REWARD)),
    "dr_grpo": Case(DrGRPOLossConfig(kind="dr_grpo", constant_denominator=30), train={"old_log_probs": "rollout"}),
    "dapo": Case(DAPOLossConfig(kind="dapo"), train={"old_log_probs": "rollout"}),
    "gspo": Case(GSPOLossConfig(kind="gspo", clip_low=0.02, clip_high=0.02), train={"old_log_probs": "rollout"}),
    "cispo": Case(CISPOLossConfig(kind="cispo", ratio_low=0.8, ratio_high=1.2), train={"old_log_probs": "rollout"}),
    "rloo": Case(RLOOLossConfig(kind="rloo"), train={"old_log_probs": "rollout"}),
    "reinforce_pp": Case(ReinforcePlusPlusLossConfig(kind="reinforce_pp", kl=IN_REWARD)),
    "reinforce_pp, baseline": Case(ReinforcePlusPlusLossConfig(kind="reinforce_pp", baseline=True)),
    "ppo": Case(PPOLossConfig(kind="ppo", discount=0.98, gae_lambda=0.9, critic=CriticConfig(value_clip=0.0))),
    "ppo, kl in the reward": Case(
        PPOLossConfig(kind="ppo", kl=IN_REWARD, normalize_advantages=False), train={"old_log_probs": "rollout"}
    ),
    "distillation, sampled": Case(DistillationLossConfig(kind="distillation", teacher="t")),
    "distillation, top_k": Case(DistillationLossConfig(kind="distillation", teacher="t", estimator="top_k", top_k=5)),
    "distillation, forward": Case(
        DistillationLossConfig(kind="distillation", teacher="t", estimator="top_k", top_k=5, direction="forward"),
        CorrectionsConfig(weight=WeightCorrection(level="geometric")),
    ),
    "sft": Case(SFTLossConfig(kind="sft")),
    "dpo": Case(DPOLossConfig(kind="dpo", beta=0.3, label_smoothing=0.1)),
}  # fmt: skip


def samples_for(loss: LossConfig) -> list[Sample]:
    """Nine samples of three prompts: sampled near the policy (0.2 nats off), or reference answers, preferred or not."""
    samples = rewarded(make_groups(3, 3, seed=3), seed=1)
    if not loss.trains_on_completions:
        return [as_reference_answer(s, reward=float(i % 3 == 0)) for i, s in enumerate(samples)]
    scored = score(samples)
    rng = np.random.default_rng(4)
    return [
        replace(s, rollout_log_probs=np.minimum(x + rng.normal(0, 0.2, len(s)), 0.0))
        for s, x in zip(samples, scored, strict=True)
    ]


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
    trainer = NativeTrainer(tiny_model("qwen3"), TrainConfig(), GRPOLossConfig(), total_steps=1)
    return trainer.score(samples)


def trainer_of(case: Case, **train: object) -> NativeTrainer:
    """A trainer of ``tiny_model("qwen3")``; reference, teacher and critic are other models.

    The weights stay as they are, unless a learning rate is given.
    """
    settings = {"learning_rate": 0.0, "max_grad_norm": 1e9, "micro_batch_tokens": 10_000}
    is_distillation = isinstance(case.loss, DistillationLossConfig)
    trainer = NativeTrainer(
        tiny_model("qwen3"),
        TrainConfig(**settings | dict(case.train) | train),
        case.loss,
        corrections=case.corrections,
        total_steps=10,
        reference=tiny_model("qwen3", seed=1) if case.loss.needs_reference else None,
        teacher=Teacher(tiny_model("qwen3", seed=2), vocab_limit=VOCAB)
        if is_distillation
        else None,
    )
    if trainer.critic is not None:
        # A head of zeros gives its trunk no gradient.
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            trainer.critic.model.value_head.normal_(0.0, 0.2, generator=generator)
    return trainer


def gradients_of(
    case: Case, samples: Sequence[Sample] | None = None, **train: object
) -> tuple[dict[str, torch.Tensor], TrainMetrics]:
    """(gradient by name, a critic's among them; metrics) of one step."""
    trainer = trainer_of(case, **train)
    metrics = train_on(trainer, samples_for(case.loss) if samples is None else samples)
    found = {name: p.grad for name, p in trainer.model.named_parameters()}
    if trainer.critic is not None:
        found |= {f"critic.{n}": p.grad for n, p in trainer.critic.model.named_parameters()}
    return found, metrics


def check_gradient(
    case: Case, gradient: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """To 1e-6 per tensor, or as one vector if the terms of two answers to one prompt cancel."""
    if isinstance(case.loss, DPOLossConfig):
        GRADIENT_NORM.check(gradient, expected)
        FP32_MODEL_GRADIENT.check(gradient, expected)
    else:
        GRADIENT.check(gradient, expected)
