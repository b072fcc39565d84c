"""Evaluates a policy on held-out prompts, with greedy answers, sampled answers, or both."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerogap.config import EvaluateConfig, RunConfig, SamplingConfig
from zerogap.data import PromptItem
from zerogap.obs import StepMetrics
from zerogap.rollout import Collector, CollectProgress, Rollouts, run_async
from zerogap.types import SamplingParams

MakeCollector = Callable[[SamplingParams, int], Collector]
"""(sampling parameters, completions per prompt) -> a collector on the current policy."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation prompts, and how they are answered."""

    items: Sequence[PromptItem]
    config: EvaluateConfig
    sampling: SamplingConfig

    @classmethod
    def of_recipe(cls, config: RunConfig, items: Sequence[PromptItem]) -> "Evaluation":
        """The evaluation of a recipe."""
        return cls(
            items=items[: config.evaluate.max_prompts],
            config=config.evaluate,
            sampling=config.evaluate_sampling,
        )

    @property
    def num_completions(self) -> int:
        """Completions per evaluation."""
        return len(self.items) * (self.config.greedy + self.config.samples)

    def run(
        self,
        make_collector: MakeCollector,
        *,
        metrics: StepMetrics,
        on_progress: Callable[[CollectProgress], None] | None = None,
    ) -> None:
        """Answer every prompt and add ``eval/*`` to ``metrics``. Every evaluation uses the same sampling seeds."""
        if self.config.greedy:
            params = self.sampling.greedy().params()
            answered = run_async(
                make_collector(params, 1).collect(
                    self.items, step=0, purpose="eval-greedy", on_progress=on_progress
                )
            )
            _add_mean(metrics, "eval/reward/mean", answered)
            _add_counts(metrics, answered)
        if self.config.samples:
            drawn = run_async(
                make_collector(self.sampling.params(), self.config.samples).collect(
                    self.items, step=0, purpose="eval-sampled", on_progress=on_progress
                )
            )
            _add_mean(metrics, "eval/sampled/reward/mean", drawn)
            if not self.config.greedy:
                _add_mean(metrics, "eval/reward/mean", drawn)
            for group in drawn.groups:
                rewards = [s.reward for s in group.samples if s.reward is not None]
                if rewards:
                    metrics.add("eval/sampled/best/mean", max(rewards))
            _add_counts(metrics, drawn)
        metrics.add("eval/num_prompts", len(self.items))


def _add_mean(metrics: StepMetrics, name: str, rollouts: Rollouts) -> None:
    rewards = [s.reward for s in rollouts.samples if s.reward is not None]
    if rewards:
        metrics.add(name, statistics.fmean(rewards), weight=len(rewards))


def _add_counts(metrics: StepMetrics, rollouts: Rollouts) -> None:
    for sample in rollouts.samples:
        metrics.add("eval/num_failed", float(sample.reward is None))
        metrics.add("eval/completion_len/mean", sample.num_completion_tokens)
        metrics.add("eval/truncated_fraction", float(sample.outcome == "truncated"))
