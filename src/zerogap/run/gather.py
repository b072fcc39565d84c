"""Gathers the samples of a step: completions that an engine draws, or the data set's own answers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from zerogap.algorithms import overlong_penalties
from zerogap.config import OverlongConfig, RunConfig, SamplingPolicyConfig
from zerogap.data import PromptStream
from zerogap.obs import Progress, Spans, StepMetrics
from zerogap.rollout import (
    Collector,
    DynamicRollouts,
    Generator,
    Hinted,
    Hints,
    Rollouts,
    Shaping,
    by_completion_len,
    collect_dynamically,
    mask_truncated,
    run_async,
    shaped,
)
from zerogap.run.progress import show_generation
from zerogap.run.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The samples of one step."""

    drawn: Rollouts
    """All samples, for statistics."""
    trained: Rollouts
    """The groups that train."""
    note: str = ""
    """A message for the user; may be empty."""

    @property
    def not_trained(self) -> Rollouts:
        """The other groups: without a signal, or surplus."""
        items = {n: item for n, item in self.drawn.items.items() if n not in self.trained.items}
        groups = tuple(group for group in self.drawn.groups if group.group_id in items)
        return Rollouts(groups=groups, items=items)


Gatherer = Callable[[int, StepMetrics], Gathered]
"""(step, metrics) -> its samples. Takes prompts from the run's stream, and adds to ``metrics``."""


@dataclass(frozen=True, kw_only=True)
class CompletionGatherer:
    """Draws and grades completions, and applies the sampling policy: mask, then choice of groups, then shaping."""

    stream: PromptStream
    collector: Callable[[], Collector]
    """A collector on the engine that samples now."""
    num_prompts: int
    """Groups of a step."""
    group_size: int
    policy: SamplingPolicyConfig
    hints: Hints | None
    """What a teacher reads, if it reads another prompt than the policy."""
    max_tokens: int
    """Limit for a completion."""
    spans: Spans
    progress: Progress

    def __call__(self, step: int, metrics: StepMetrics) -> Gathered:
        """Draw and grade the samples of a step."""
        collector, dynamic = self.collector(), self.policy.dynamic_sampling

        def collect(count: int, number: int) -> Rollouts:
            items, total = self.stream.take(count), count * self.group_size
            purpose = f"train+{number}" if number else "train"
            with (
                self.spans.span("generate"),
                self.progress.phase(f"step {step}: generate", total=total, unit="completions") as phase,
            ):  # fmt: skip
                drawn = run_async(
                    collector.draw(
                        items, step=step, purpose=purpose, on_progress=show_generation(phase)
                    )
                )
            with self.spans.span("reward"):
                rewarded = run_async(collector.reward(drawn))
            if self.policy.truncated == "mask":
                return rewarded.map_samples(mask_truncated)
            return rewarded

        found = collect_dynamically(collect, num_groups=self.num_prompts, config=dynamic)
        metrics.add("rollout/num_rounds", found.num_rounds)
        if dynamic.is_on:
            metrics.add("rollout/num_groups", len(found.drawn.groups))
            metrics.add("rollout/num_groups_surplus", found.num_surplus)
            metrics.add("rollout/num_groups_without_signal", found.num_without_signal)
        notes = [self._note(step, found)] if found.is_starved else []
        trained = found.trained
        if self.hints is not None:
            hinted = self.hints(trained)
            trained = hinted.rollouts
            notes += self._notes_of_hints(step, hinted)
            if hinted.num_trainable:
                metrics.add("rollout/hinted_fraction", hinted.num_hinted / hinted.num_trainable)
        return Gathered(
            drawn=self._shape(found.drawn),
            # Groups that are only there because none has a signal must not get one from a penalty.
            trained=trained if found.is_without_signal else self._shape(trained),
            note="\n".join(notes),
        )

    def _notes_of_hints(self, step: int, hinted: Hinted) -> list[str]:
        if not hinted.num_too_long:
            return []
        return [
            f"step {step}: the teacher's prompt of {hinted.num_too_long} samples is too long for the model with its hint, so the teacher does not score them; shorten teacher.hint.template or rollout.sampling.max_new_tokens"
        ]

    def _shape(self, rollouts: Rollouts) -> Rollouts:
        """With the terms that the policy adds to training rewards. Evaluation uses the plain rewards."""
        if self.policy.overlong is None:
            return rollouts
        shapings = {"overlong": _overlong(self.policy.overlong, max_tokens=self.max_tokens)}
        return rollouts.map_samples(partial(shaped, shapings=shapings))

    def _note(self, step: int, found: DynamicRollouts) -> str:
        dynamic = self.policy.dynamic_sampling
        have = {
            "reward": "differing rewards",
            "accuracy": f"right and wrong completions (rewards from {dynamic.correct_threshold:g} are right)",
        }
        kept = "the step trains on those"
        if found.is_without_signal:
            kept = "the step keeps the first groups, without shaping"
        return (
            f"step {step}: after {found.num_rounds} round{'' if found.num_rounds == 1 else 's'}, only {found.num_with_signal} of {self.num_prompts} groups have {have[dynamic.signal]}, "
            f"and {kept}; to get more, try harder or easier prompts, larger groups or a higher "
            "sampling_policy.dynamic_sampling.max_rounds or over_sampling"
        )


def build_gatherer(
    config: RunConfig,
    workload: Workload,
    engine: Callable[[], Generator],
    *,
    spans: Spans,
    progress: Progress,
) -> Gatherer:
    """The gatherer that a recipe's loss needs.

    Args:
        config: the recipe.
        workload: training prompts, and rewards or reference answers.
        engine: gives the engine that samples now.
        spans: times ``generate`` and ``reward``.
        progress: shows the generation.
    """
    stream, answers, rollout = workload.stream, workload.answers, config.rollout
    if answers is not None:

        def take_answers(step: int, metrics: StepMetrics) -> Gathered:
            made = answers(stream.take(rollout.prompts_per_step), step=step)
            return Gathered(drawn=made, trained=made)

        return take_answers

    return CompletionGatherer(
        stream=stream,
        collector=lambda: workload.collector(
            engine(), rollout.sampling.params(), rollout.group_size
        ),
        num_prompts=rollout.prompts_per_step,
        group_size=rollout.group_size,
        policy=config.sampling_policy,
        hints=workload.hints,
        max_tokens=rollout.sampling.max_new_tokens,
        spans=spans,
        progress=progress,
    )


def _overlong(config: OverlongConfig, *, max_tokens: int) -> Shaping:
    penalty = partial(
        overlong_penalties,
        max_tokens=max_tokens,
        buffer_tokens=config.buffer_tokens,
        penalty=config.penalty,
    )
    return by_completion_len(penalty)
