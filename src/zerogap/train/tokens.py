"""The tokens of a step's samples, one after the other, as columns: all that is known before anything is computed.

Letters: B samples, S all their tokens one after the other, R targets of a micro-batch, T tokens of one sample.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from zerogap.algorithms import combined_rewards
from zerogap.config.reward import RewardPart
from zerogap.errors import DataError
from zerogap.train.forward import Statistic
from zerogap.train.metrics import Phase
from zerogap.train.packing import MicroBatch
from zerogap.train.participants import Participants
from zerogap.types import Sample


class TokenIndex:
    """The slot of each token of each sample: its index in a column."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._end_B = np.cumsum([len(sample) for sample in samples])

    def new_column(self) -> np.ndarray:
        """float32 [S] of NaN, which marks a slot that nothing has written."""
        return np.full(self._end_B[-1] if len(self._end_B) else 0, np.nan, np.float32)

    def spread(self, values_B: np.ndarray) -> np.ndarray:
        """[S]: each sample's value at all of its tokens."""
        return np.repeat(values_B, [len(sample) for sample in self._samples])

    def slots(self, micro_batch: MicroBatch) -> np.ndarray:
        """int64 [R]: the slot of each target."""
        start_B = self._end_B - [len(sample) for sample in self._samples]
        return start_B[micro_batch.sample_R] + micro_batch.position_R

    def column(self, found: Iterable[tuple[MicroBatch, np.ndarray]]) -> np.ndarray:
        """float32 [S]: what was found of the targets of micro-batches; NaN elsewhere."""
        column_S = self.new_column()
        for batch, found_R in found:
            column_S[self.slots(batch)] = found_R
        return column_S

    def split(self, column_S: np.ndarray) -> list[np.ndarray]:
        """One array [T] a sample."""
        return np.split(column_S, self._end_B[:-1])

    def name(self, slot: int) -> str:
        """The name of a slot's token in errors."""
        at = int(np.searchsorted(self._end_B, slot, side="right"))
        position = slot - (self._end_B[at] - len(self._samples[at]))
        return f"{self._name_of_sample(at)}, position {position}"

    def _name_of_sample(self, at: int) -> str:
        name = self._samples[at].rollout_id
        same = [i for i, sample in enumerate(self._samples) if sample.rollout_id == name]
        which = "" if len(same) == 1 else f" (sample {same.index(at) + 1} of {len(same)})"
        return f"rollout {name}{which}"


@dataclass(frozen=True, eq=False)
class StepTokens:
    """Columns of a step's samples, made from the samples and the participants."""

    samples: Sequence[Sample]
    who: Participants
    reward_parts: Mapping[str, RewardPart] = field(default_factory=dict)
    """Of a weighted sum, by name."""

    @cached_property
    def index(self) -> TokenIndex:
        """The slots of the samples' tokens."""
        return TokenIndex(self.samples)

    @cached_property
    def group_ids(self) -> list[str]:
        """One a sample."""
        return [sample.group_id for sample in self.samples]

    @cached_property
    def rewards_B(self) -> np.ndarray:
        """float64 [B], as advantages see them: with parts normalised that ask for it; NaN without one."""
        if any(part.normalize == "group" for part in self.reward_parts.values()):
            return self._combined_rewards()
        return np.array([np.nan if s.reward is None else s.reward for s in self.samples])

    def _combined_rewards(self) -> np.ndarray:
        """Parts of the sum, and what was added to it under other names. A name with "/" is within a part."""
        found = {name for s in self.samples for name in s.reward_parts if "/" not in name}
        parts = {name: RewardPart() for name in sorted(found)} | dict(self.reward_parts)
        return combined_rewards(
            {name: self._part(name) for name in parts},
            {name: part.weight for name, part in parts.items()},
            {name: part.normalize for name, part in parts.items()},
            self.group_ids,
            self.who.is_kept_B,
        )

    def _part(self, name: str) -> np.ndarray:
        """float64 [B]; NaN for a sample that takes no part."""
        values_B = np.full(len(self.samples), np.nan)
        for i in np.flatnonzero(self.who.is_kept_B):
            sample = self.samples[int(i)]
            if name not in sample.reward_parts:
                msg = f"rollout {sample.rollout_id}: its reward has no part {name!r}, only {list(sample.reward_parts)}, and advantages need the parts of every sample; score all samples by one recipe's rewards"
                raise DataError(msg)
            values_B[i] = sample.reward_parts[name]
        return values_B

    @cached_property
    def num_loss_tokens_B(self) -> np.ndarray:
        """int64 [B]: 0 for samples that take no part."""
        return np.array([s.num_loss_tokens for s in self.samples]) * self.who.is_kept_B

    @cached_property
    def sample_S(self) -> np.ndarray:
        """int64 [S]: the sample of each token."""
        return self.index.spread(np.arange(len(self.samples)))

    @cached_property
    def trains_S(self) -> np.ndarray:
        """Bool [S]: tokens of the loss."""
        loss_mask_S = np.concatenate([sample.loss_mask for sample in self.samples])
        return self.index.spread(self.who.is_kept_B) & loss_mask_S

    @cached_property
    def rollout_log_probs_S(self) -> np.ndarray:
        """float32 [S]: the engine's."""
        return np.concatenate([s.rollout_log_probs for s in self.samples])

    @cached_property
    def weight_version_S(self) -> np.ndarray:
        """int64 [S]; -1 where no engine sampled."""
        return np.concatenate([s.weight_version for s in self.samples])


class Score(Protocol):
    """Forward passes over a step's samples with the current weights, without gradient."""

    def __call__(self, phase: Phase, is_wanted_B: np.ndarray, /) -> np.ndarray:
        """One number for each trained token of the wanted samples: float32 [S], NaN elsewhere.

        Args:
            phase: old, reference, teacher: log-probs by policy, reference, teacher; values: the critic's, before each token.
            is_wanted_B: bool [B].
        """
        ...

    def statistics(self, is_wanted_B: np.ndarray, /) -> dict[Statistic, np.ndarray]:
        """All statistics of the policy's distribution at each of these tokens, from one pass: columns as above.

        The log-probs have the bits of the phase ``old``.
        """
        ...
