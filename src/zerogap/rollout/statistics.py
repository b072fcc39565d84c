"""The metrics of a step's samples. Denominators: samples with a reward for rewards, all samples for lengths."""

import statistics
from collections.abc import Sequence

from zerogap.obs.metrics import StepMetrics
from zerogap.types import Outcome, Sample


def add_rollout_metrics(metrics: StepMetrics, samples: Sequence[Sample]) -> None:
    """Add ``reward/*``, ``rollout/*`` and ``outcome/*`` of a step's samples.

    Failed samples count under their outcome but not in rewards. Nor do reference answers, whose 1 or 0 only says which
    of two is preferred. Lengths and the share of truncated samples are over all samples, so that failures cannot hide
    how long completions get.
    """
    for outcome in Outcome:
        metrics.add(f"outcome/{outcome}", sum(s.outcome == outcome for s in samples))
    metrics.add("rollout/num_samples", len(samples))
    for sample in samples:
        metrics.add("rollout/prompt_len/mean", sample.num_prompt_tokens)
        metrics.add("rollout/completion_len/mean", sample.num_completion_tokens)
        metrics.add("rollout/completion_len/max", sample.num_completion_tokens)
        metrics.add("rollout/truncated_fraction", sample.outcome == Outcome.TRUNCATED)
        metrics.add("rollout/failed_fraction", not sample.outcome.is_valid)
    _add_rewards(metrics, samples)


def _add_rewards(metrics: StepMetrics, samples: Sequence[Sample]) -> None:
    rewards = [s.reward for s in samples if s.reward is not None and not s.is_demonstration]
    for reward in rewards:
        for stat in ("mean", "min", "max"):
            metrics.add(f"reward/{stat}", reward)
    if rewards:
        metrics.add("reward/std", statistics.pstdev(rewards))
    for sample in samples:
        for name, part in sample.reward_parts.items():
            metrics.add(f"reward/{name}/mean", part)
