"""Evaluates a policy on held-out prompts, with greedy answers, sampled answers, or both."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from rich.console import Console

from zerogap.config import EvaluateConfig, ModelSection, RunConfig, SamplingConfig
from zerogap.data import PromptEncoder, PromptItem, PromptSets, build_prompt_sets
from zerogap.engine import AsyncEngine
from zerogap.errors import ConfigError
from zerogap.obs import Progress, StepMetrics
from zerogap.rollout import (
    Collector,
    CollectProgress,
    Rewards,
    Rollouts,
    SingleTurn,
    run_async,
)
from zerogap.run.failures import FailedRewards
from zerogap.run.machine import apply_threads
from zerogap.run.policy import load_policy
from zerogap.run.progress import show_generation
from zerogap.run.rewards import recipe_rewards
from zerogap.types import Sample, SamplingParams


def evaluate_model(model: str, config: RunConfig, *, quiet: bool = False) -> dict[str, float]:
    """The ``eval/*`` metrics of ``model`` on the evaluation prompts of ``config``.

    Raises:
        ConfigError: the recipe has no evaluation prompts.
        RewardFailed: no answer got a reward.
    """
    apply_threads()
    sets = build_prompt_sets(config.data)
    if not len(sets.evaluation):
        msg = "data has no evaluation prompts; set data.eval_size, or data.eval_path for files"
        raise ConfigError(msg)
    console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    with closing(recipe_rewards(config, sets)) as rewards:
        if not quiet:
            for line in rewards.describe():
                console.print(line)
        metrics, samples = _evaluated(model, config, sets, rewards, Progress(console, is_quiet=quiet))  # fmt: skip
    FailedRewards(console.print).take("evaluation", samples, must_have_one=True)
    return metrics


def _evaluated(
    model: str, config: RunConfig, sets: PromptSets, rewards: Rewards, progress: Progress
) -> tuple[dict[str, float], list[Sample]]:
    """The metrics and the answers that they are of."""
    policy = load_policy(
        ModelSection(path=model, tokenizer=config.model.tokenizer if config.model.path else None),
        seed=config.run.seed,
    )
    evaluation = Evaluation.of_recipe(config, sets.evaluation)
    metrics = StepMetrics()
    with (
        AsyncEngine(policy.engine(config.engine, seed=config.run.seed)) as engine,
        progress.phase("evaluate", total=evaluation.num_completions, unit="completions") as phase,
    ):
        environment = SingleTurn(PromptEncoder(policy.tokenizer, config.prompt), rewards)

        def make_collector(sampling: SamplingParams, group_size: int) -> Collector:
            return Collector(
                engine,
                environment,
                decode=policy.tokenizer.decode,
                vocab_limit=policy.vocab_limit,
                sampling=sampling,
                group_size=group_size,
                seed=config.run.seed,
            )

        samples = evaluation.run(
            make_collector, metrics=metrics, on_progress=show_generation(phase)
        )
    return metrics.reduce(), samples


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
        make_collector: Callable[[SamplingParams, int], Collector],
        *,
        metrics: StepMetrics,
        on_progress: Callable[[CollectProgress], None] | None = None,
    ) -> list[Sample]:
        """Answer every prompt, add ``eval/*`` to ``metrics``, and return all answers. Every evaluation uses the same sampling seeds."""
        samples: list[Sample] = []
        if self.config.greedy:
            greedy = make_collector(self.sampling.greedy().params(), 1)
            answered = self._answer(greedy, "eval-greedy", on_progress)
            _add_means(metrics, "eval/reward", answered)
            _add_counts(metrics, answered)
            samples += answered.samples
        if self.config.samples:
            sampled = make_collector(self.sampling.params(), self.config.samples)
            drawn = self._answer(sampled, "eval-sampled", on_progress)
            _add_means(metrics, "eval/sampled/reward", drawn)
            if not self.config.greedy:
                _add_means(metrics, "eval/reward", drawn)
            for group in drawn.groups:
                rewards = [s.reward for s in group.samples if s.reward is not None]
                if rewards:
                    metrics.add("eval/sampled/best/mean", max(rewards))
            _add_counts(metrics, drawn)
            samples += drawn.samples
        metrics.add("eval/num_prompts", len(self.items))
        return samples

    def _answer(
        self,
        collector: Collector,
        purpose: str,
        on_progress: Callable[[CollectProgress], None] | None,
    ) -> Rollouts:
        return run_async(
            collector.collect(self.items, step=0, purpose=purpose, on_progress=on_progress)
        )


def _add_means(metrics: StepMetrics, name: str, rollouts: Rollouts) -> None:
    """The rewards' mean, and that of each of their parts."""
    rewards = [s.reward for s in rollouts.samples if s.reward is not None]
    if rewards:
        metrics.add(f"{name}/mean", statistics.fmean(rewards), weight=len(rewards))
    for sample in rollouts.samples:
        for part, value in sample.reward_parts.items():
            metrics.add(f"{name}/{part}/mean", value)


def _add_counts(metrics: StepMetrics, rollouts: Rollouts) -> None:
    for sample in rollouts.samples:
        metrics.add("eval/num_failed", float(sample.reward is None))
        metrics.add("eval/completion_len/mean", sample.num_completion_tokens)
        metrics.add("eval/truncated_fraction", float(sample.outcome == "truncated"))
