"""Gathers the samples of a step: completions that an engine draws, or the data set's own answers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from zerogap.algorithms import overlong_penalties
from zerogap.config import DAPOLossConfig, LossConfig, RunConfig
from zerogap.data import PromptStream
from zerogap.obs import Progress, Spans, StepMetrics
from zerogap.rollout import (
    Collector,
    Generator,
    Rollouts,
    Shaping,
    by_completion_len,
    collect_dynamically,
    run_async,
)
from zerogap.run.progress import show_generation
from zerogap.run.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The samples of one step."""

    drawn: Rollouts
    """All samples, for statistics."""
    trained: Rollouts
    """The samples that train."""
    note: str = ""
    """A message for the user; may be empty."""


Gatherer = Callable[[int, StepMetrics], Gathered]
"""(step, metrics) -> its samples. Takes prompts from the run's stream, and adds to ``metrics``."""


@dataclass(frozen=True, kw_only=True)
class CompletionGatherer:
    """Draws and grades completions. For DAPO it repeats that until enough groups have a signal."""

    stream: PromptStream
    collector: Callable[[], Collector]
    """A collector on the engine that samples now."""
    num_prompts: int
    """Prompts per step."""
    group_size: int
    max_rounds: int
    """Rounds of a step; all after the first replace groups without a signal."""
    spans: Spans
    progress: Progress

    def __call__(self, step: int, metrics: StepMetrics) -> Gathered:
        """Draw and grade the samples of a step."""
        collector = self.collector()

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
                return run_async(collector.reward(drawn))

        wanted = self.num_prompts
        found = collect_dynamically(collect, num_groups=wanted, max_rounds=self.max_rounds)
        metrics.add("rollout/num_rounds", found.num_rounds)
        note = ""
        if found.is_starved:
            note = (
                f"step {step}: after {found.num_rounds} rounds, only {found.num_with_signal} of {wanted} groups have differing rewards, and the step "
                "trains on those; to get more, try harder or easier prompts, larger groups or a higher loss.dynamic_sampling.max_rounds"
            )
        return Gathered(drawn=found.drawn, trained=found.trained, note=note)


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

    loss = config.loss
    shapings = _shapings(loss, max_tokens=rollout.sampling.max_new_tokens)
    return CompletionGatherer(
        stream=stream,
        collector=lambda: workload.collector(
            engine(), rollout.sampling.params(), rollout.group_size, shapings
        ),
        num_prompts=rollout.prompts_per_step,
        group_size=rollout.group_size,
        max_rounds=loss.dynamic_sampling.max_rounds if isinstance(loss, DAPOLossConfig) else 1,
        spans=spans,
        progress=progress,
    )


def _shapings(loss: LossConfig, *, max_tokens: int) -> dict[str, Shaping]:
    """Terms that a loss adds to training rewards, by name. Evaluation uses the plain rewards."""
    if not isinstance(loss, DAPOLossConfig) or loss.overlong is None:
        return {}
    penalty = partial(
        overlong_penalties,
        max_tokens=max_tokens,
        buffer_tokens=loss.overlong.buffer_tokens,
        penalty=loss.overlong.penalty,
    )
    return {"overlong": by_completion_len(penalty)}
