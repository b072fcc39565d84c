"""Packing, and the forward passes before the weights change, by the models of this process.

B samples, S all their tokens, R targets of a micro-batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from zerogap.config.train import TrainConfig
from zerogap.kernels import Compute
from zerogap.models import CausalLM
from zerogap.train.columns import StepMeter
from zerogap.train.critic import Critic
from zerogap.train.forward import Statistic, scores, statistics
from zerogap.train.metrics import Phase
from zerogap.train.packing import MicroBatch, UpdateBatches, pack
from zerogap.train.plan import StepPlan
from zerogap.train.teacher import Teacher, as_the_teacher_reads, num_tokens_more
from zerogap.train.tokens import TokenIndex
from zerogap.types import Sample


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Scores a step's tokens with these models; changes none."""

    model: CausalLM
    """The policy."""
    reference: CausalLM | None
    teacher: Teacher | None
    critic: Critic | None
    config: TrainConfig
    compute: Compute
    """How the passes compute."""

    def score(
        self, samples: Sequence[Sample], meter: StepMeter, phase: Phase, is_wanted_B: np.ndarray
    ) -> np.ndarray:
        """See ``Score``; the meter gets time and progress."""
        if phase == "teacher":
            return self._teacher_scores(samples, meter, is_wanted_B)
        return self._scores(samples, meter, phase, is_wanted_B)

    def _teacher_scores(
        self, samples: Sequence[Sample], meter: StepMeter, is_wanted_B: np.ndarray
    ) -> np.ndarray:
        """The teacher's log-probs, which it may have read behind another prompt, at the slots of the samples' own tokens."""
        reads = [as_the_teacher_reads(sample) for sample in samples]
        read = TokenIndex(reads).split(self._scores(reads, meter, "teacher", is_wanted_B))
        found = [np.full(len(sample), np.nan, np.float32) for sample in samples]
        for own, column, sample in zip(found, read, samples, strict=True):
            start = sample.num_prompt_tokens
            own[start:] = column[start + num_tokens_more(sample) :]
        return np.concatenate(found)

    def _scores(
        self, samples: Sequence[Sample], meter: StepMeter, phase: Phase, is_wanted_B: np.ndarray
    ) -> np.ndarray:
        batches = self._announced(samples, meter, phase, is_wanted_B)
        with meter.spans.span(phase):
            found = self._found(phase, meter.counted(phase, batches), samples)
            return TokenIndex(samples).column(found)

    def statistics(
        self, samples: Sequence[Sample], meter: StepMeter, is_wanted_B: np.ndarray
    ) -> dict[Statistic, np.ndarray]:
        """See ``Score.statistics``."""
        batches, index = self._announced(samples, meter, "old", is_wanted_B), TokenIndex(samples)
        with meter.spans.span("old"):
            counted = meter.counted("old", batches)
            found = list(statistics(self.model, counted, samples, compute=self.compute))
        return {
            name: index.column((batch, of_batch[name]) for batch, of_batch in found)
            for name in get_args(Statistic)
        }

    def _announced(
        self, samples: Sequence[Sample], meter: StepMeter, phase: Phase, is_wanted_B: np.ndarray
    ) -> list[MicroBatch]:
        """The micro-batches of a phase, which the meter expects."""
        batches = self.pack(samples, is_wanted_B, meter)
        meter.expect(phase, batches)
        if phase != "old":
            # An estimate of the updates' rows, until they are packed.
            meter.expect("update", batches)
        return batches

    def pack_updates(self, plan: StepPlan, meter: StepMeter) -> list[UpdateBatches]:
        """The micro-batches of each update."""
        members = [plan.is_member_B(number) for number in range(plan.num_updates)]
        return [
            UpdateBatches(
                with_gradient=self.pack(plan.samples, is_in_B & plan.learns_B, meter),
                without_gradient=self.pack(plan.samples, is_in_B & ~plan.learns_B, meter),
            )
            for is_in_B in members
        ]

    def pack(
        self, samples: Sequence[Sample], is_member_B: np.ndarray, meter: StepMeter
    ) -> list[MicroBatch]:
        """Micro-batches of the loss tokens of some samples; ``sample_R`` indexes all samples."""
        targets = [s.loss_mask & is_in for s, is_in in zip(samples, is_member_B, strict=True)]
        with meter.spans.span("pack"):
            return pack(
                samples,
                targets,
                max_rows=self.config.micro_batch_tokens,
                share_prompts=self.config.share_prompts,
            )

    def _found(
        self, phase: Phase, batches: Iterable[MicroBatch], samples: Sequence[Sample]
    ) -> Iterator[tuple[MicroBatch, np.ndarray]]:
        """Each micro-batch with the log-probs or values of its targets, float32 [R]."""
        if phase == "values":
            assert self.critic is not None, "a loss that needs a critic has one"
            return self.critic.values(batches, compute=self.compute)
        teacher = None if self.teacher is None else self.teacher.model
        others = {"reference": self.reference, "teacher": teacher}
        model = others.get(phase, self.model)
        assert model is not None, f"a loss that needs a {phase} has one"
        return scores(model, batches, samples, compute=self.compute)


@dataclass(frozen=True)
class StepScore:
    """A ``Score`` by the models of this process."""

    passes: Passes
    samples: Sequence[Sample]
    meter: StepMeter

    def __call__(self, phase: Phase, is_wanted_B: np.ndarray, /) -> np.ndarray:
        """See ``Score``."""
        return self.passes.score(self.samples, self.meter, phase, is_wanted_B)

    def statistics(self, is_wanted_B: np.ndarray, /) -> dict[Statistic, np.ndarray]:
        """See ``Score``."""
        return self.passes.statistics(self.samples, self.meter, is_wanted_B)
