"""Samples for tests of packing and training, within the vocabulary of ``tiny_models``."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from zerogap.train import StepGradient, Trainer, TrainMetrics
from zerogap.types import Outcome, Sample, Source

VOCAB = 97


def make_sample(
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    group_id: str = "g0",
    index: int = 0,
    temperature: float = 1.0,
    outcome: Outcome = Outcome.COMPLETED,
    loss_mask: Sequence[bool] | None = None,
    rollout_log_probs: Sequence[float] | None = None,
) -> Sample:
    """One turn: a prompt and a sampled completion whose log-probs are -1 unless given."""
    num_prompt, num_out = len(prompt), len(completion)
    log_probs = np.full(num_out, -1.0) if rollout_log_probs is None else rollout_log_probs
    trains = np.ones(num_out, bool) if loss_mask is None else np.array(loss_mask, bool)
    return Sample(
        token_ids=np.array([*prompt, *completion]),
        source=np.repeat([Source.PROMPT, Source.POLICY], [num_prompt, num_out]),
        loss_mask=np.concatenate([np.zeros(num_prompt, bool), trains]),
        rollout_log_probs=np.concatenate([np.full(num_prompt, np.nan), log_probs]),
        kept_log_mass=np.zeros(num_prompt + num_out),
        weight_version=np.repeat([-1, 0], [num_prompt, num_out]),
        group_id=group_id,
        rollout_id=f"{group_id}/{index}",
        temperature=temperature,
        outcome=outcome,
    )


def make_groups(
    num_groups: int = 3, group_size: int = 4, *, seed: int = 0, temperature: float = 1.0
) -> list[Sample]:
    """Groups of one prompt each (3 to 30 tokens) with completions of 1 to 25 tokens, some with gaps in the mask."""
    rng = np.random.default_rng(seed)
    samples = []
    for g in range(num_groups):
        prompt = rng.integers(0, VOCAB, rng.integers(3, 31))
        for i in range(group_size):
            length = rng.integers(1, 26)
            mask = rng.random(length) < 0.9
            mask[rng.integers(0, length)] = True
            samples.append(
                make_sample(
                    prompt, rng.integers(0, VOCAB, length), group_id=f"g{g}", index=i,
                    temperature=temperature, loss_mask=mask,
                )
            )  # fmt: skip
    return samples


def rewarded(
    samples: Sequence[Sample], rewards: Sequence[float] | None = None, *, seed: int = 0
) -> list[Sample]:
    """The same samples, each valid one with its reward; some number unless given."""
    given = np.random.default_rng(seed).normal(size=len(samples)) if rewards is None else rewards
    pairs = zip(samples, given, strict=True)
    return [s.scored(float(r)) if s.outcome.is_valid else s for s, r in pairs]


def train_on(trainer: Trainer, samples: Sequence[Sample], **how: Any) -> TrainMetrics:
    """Plan a step on these samples and do it; ``how`` goes to ``Trainer.plan``, progress to both."""
    plan = trainer.plan(samples, **how)
    return trainer.step(plan, on_progress=how.get("on_progress"))


def gradient_on(trainer: Trainer, samples: Sequence[Sample]) -> StepGradient:
    """The gradient of the first update of a step on these samples."""
    return trainer.gradient(trainer.plan(samples))


def standard_scores(samples: Sequence[Sample]) -> list[float]:
    """Reward less the group's mean, over its standard deviation (members - 1)."""
    found = []
    for sample in samples:
        rewards = np.array([s.reward for s in samples if s.group_id == sample.group_id])
        spread = rewards.std(ddof=1)
        found.append((sample.reward - rewards.mean()) / spread if spread else 0.0)
    return found


def make_trees(
    num_groups: int = 2, group_size: int = 5, *, seed: int = 0, longest: int = 60
) -> list[Sample]:
    """Groups whose samples leave one another anywhere: in the prompt, within or between pages, or nowhere.

    What they have in common trains in some of them and is context in others, as with branches of several turns.
    """  # fmt: skip
    rng = np.random.default_rng(seed)
    samples: list[Sample] = []
    for g in range(num_groups):
        texts = [rng.integers(0, VOCAB, rng.integers(2, longest))]
        for _ in range(group_size - 1):
            earlier = texts[rng.integers(len(texts))]
            # A third leaves at a page's end, where pages of 16 are shared to the last slot.
            at = rng.choice(
                [int(rng.integers(1, len(earlier) + 1)), len(earlier), len(earlier) // 16 * 16 or 1]
            )
            texts.append(np.concatenate([earlier[:at], rng.integers(0, VOCAB, rng.integers(0, longest // 2))]))  # fmt: skip
        for i, text in enumerate(t for t in texts if len(t) > 1):
            num_prompt = int(rng.integers(1, len(text)))
            mask = rng.random(len(text) - num_prompt) < 0.7
            mask[rng.integers(len(mask))] = True
            samples.append(
                make_sample(text[:num_prompt], text[num_prompt:], group_id=f"g{g}", index=i, loss_mask=mask)
            )  # fmt: skip
    return [samples[i] for i in rng.permutation(len(samples))]
