"""Gathers the samples of a step: completions that an engine draws, or the data set's own answers."""

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
    """The samples of one step."""

    drawn: Rollouts
    """All samples, for statistics."""
    trained: Rollouts
    """The samples that train."""
    note: str = ""
    """A message for the user; may be empty."""


class Gatherer(Protocol):
    """Gathers the samples of each step."""

    def __call__(self, step: int, metrics: StepMetrics) -> Gathered:
        """Take prompts from the run's stream and return the samples of a step; adds to ``metrics``."""
        ...


class CompletionGatherer:
    """Draws and grades completions. For DAPO it repeats that until enough groups have a signal."""

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
        """A gatherer for a whole run.

        Args:
            stream: training prompts; every step takes some.
            collectors: collectors on the engine that samples now.
            rollout: number of prompts and completions, and their sampling.
            loss: tells whether groups without a signal are replaced.
            spans: times ``generate`` and ``reward``.
            progress: shows the generation.
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
                f"step {step}: after {found.num_rounds} rounds, only {found.num_with_signal} of {wanted} groups have differing rewards, and the step "
                "trains on those; to get more, try harder or easier prompts, larger groups or a higher loss.dynamic_sampling.max_rounds"
            )
        return Gathered(drawn=found.drawn, trained=found.trained, note=note)


class DemonstrationGatherer:
    """Takes prompts and makes samples of the data set's answers."""

    def __init__(self, stream: PromptStream, records: Demonstrations, *, num_prompts: int) -> None:
        """A gatherer for a whole run.

        Args:
            stream: training prompts; every step takes some.
            records: makes the samples.
            num_prompts: prompts per step.
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
    """The gatherer that a recipe's loss needs; arguments as for ``CompletionGatherer``."""
    if workload.answers is None:
        return CompletionGatherer(
            workload.stream, collectors, config.rollout, config.loss, spans=spans, progress=progress
        )
    return DemonstrationGatherer(
        workload.stream, workload.answers, num_prompts=config.rollout.prompts_per_step
    )


def build_shapings(config: RunConfig) -> dict[str, Shaping]:
    """Terms that a recipe's loss adds to training rewards, by name. Evaluation uses the plain rewards."""
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
