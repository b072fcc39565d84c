"""What a step trains on: completions that an engine draws, or the data set's own answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from zerogap.algorithms import overlong_penalties
from zerogap.config import DAPOLossConfig, LossConfig, RolloutConfig, RunConfig
from zerogap.data import PromptStream
from zerogap.obs import Progress, Spans, StepMetrics
from zerogap.rollout import (
    Demonstrations,
    Rollouts,
    Shaping,
    by_completion_len,
    collect_dynamically,
    run_async,
)
from zerogap.run.collectors import Collectors
from zerogap.run.progress import show_generation
from zerogap.run.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Samples of one step."""

    drawn: Rollouts
    """All of them: what statistics are about."""
    trained: Rollouts
    """Those that train."""
    note: str = ""
    """What a user should hear about it."""


class Gatherer(Protocol):
    """Where samples come from."""

    def __call__(self, step: int, metrics: StepMetrics) -> Gathered:
        """The samples of a step; takes prompts from the run's stream, adds to ``metrics``."""
        ...


class CompletionGatherer:
    """Draws and grades completions; for DAPO again until enough groups have a signal."""

    def __init__(
        self,
        stream: PromptStream,
        collectors: Callable[[], Collectors],
        rollout: RolloutConfig,
        loss: LossConfig,
        *,
        spans: Spans,
        progress: Progress,
    ) -> None:
        """Keep what every step uses.

        Args:
            stream: training prompts; moved on.
            collectors: those of the engine that samples now.
            rollout: how many, and how they are drawn.
            loss: whether groups without a signal are replaced.
            spans: times ``generate`` and ``reward``.
            progress: shows both.
        """
        self._stream, self._collectors, self._rollout = stream, collectors, rollout
        dynamic = loss.dynamic_sampling if isinstance(loss, DAPOLossConfig) else None
        self._max_rounds = dynamic.max_rounds if dynamic is not None else 1
        self._spans, self._progress = spans, progress

    def __call__(self, step: int, metrics: StepMetrics) -> Gathered:
        """As ``Gatherer``."""
        collector = self._collectors()(self._rollout.sampling.params(), self._rollout.group_size)

        def collect(count: int, number: int) -> Rollouts:
            items = self._stream.take(count)
            total, purpose = (
                count * self._rollout.group_size,
                f"train+{number}" if number else "train",
            )
            with (
                self._spans.span("generate"),
                self._progress.phase(f"step {step}: generate", total=total, unit="completions") as phase,
            ):  # fmt: skip
                drawn = run_async(
                    collector.draw(
                        items, step=step, purpose=purpose, on_progress=show_generation(phase)
                    )
                )
            with self._spans.span("reward"):
                return run_async(collector.reward(drawn))

        wanted = self._rollout.prompts_per_step
        found = collect_dynamically(collect, num_groups=wanted, max_rounds=self._max_rounds)
        metrics.add("rollout/num_rounds", found.num_rounds)
        note = ""
        if found.is_starved:
            note = (
                f"step {step}: after {found.num_rounds} rounds {found.num_with_signal} of {wanted} groups have rewards that differ; "
                "the step trains on those. Harder or easier prompts, larger groups or more loss.dynamic_sampling.max_rounds give more"
            )
        return Gathered(drawn=found.drawn, trained=found.trained, note=note)


class DemonstrationGatherer:
    """Takes prompts and makes records of the data set's answers."""

    def __init__(self, stream: PromptStream, records: Demonstrations, *, num_prompts: int) -> None:
        """Keep what every step uses.

        Args:
            stream: training prompts; moved on.
            records: makes the records.
            num_prompts: of a step.
        """
        self._stream, self._records, self._num_prompts = stream, records, num_prompts

    def __call__(self, step: int, metrics: StepMetrics) -> Gathered:
        """As ``Gatherer``."""
        made = self._records(self._stream.take(self._num_prompts), step=step)
        return Gathered(drawn=made, trained=made)


def build_gatherer(
    config: RunConfig,
    workload: Workload,
    collectors: Callable[[], Collectors],
    *,
    spans: Spans,
    progress: Progress,
) -> Gatherer:
    """What a recipe's loss trains on.

    Args:
        config: the recipe.
        workload: training prompts.
        collectors: those of the engine that samples now.
        spans: times ``generate`` and ``reward``.
        progress: shows both.
    """
    if workload.answers is None:
        return CompletionGatherer(
            workload.stream, collectors, config.rollout, config.loss, spans=spans, progress=progress
        )
    return DemonstrationGatherer(
        workload.stream, workload.answers, num_prompts=config.rollout.prompts_per_step
    )


def build_shapings(config: RunConfig) -> dict[str, Shaping]:
    """What a recipe's loss adds to training rewards, by name; evaluation has the verifier's alone."""
    loss, limit = config.loss, config.rollout.sampling.max_new_tokens
    if not isinstance(loss, DAPOLossConfig) or loss.overlong is None:
        return {}
    overlong = loss.overlong

    def penalty(lengths_B: np.ndarray) -> np.ndarray:
        return overlong_penalties(
            lengths_B,
            max_tokens=limit,
            buffer_tokens=overlong.buffer_tokens,
            penalty=overlong.penalty,
        )

    return {"overlong": by_completion_len(penalty)}
