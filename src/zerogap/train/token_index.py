"""Tokens of many samples as slots of one flat column, so that a micro-batch's targets are one index array.

Letters: S all tokens of all samples one after the other, R targets of a micro-batch, T tokens of one sample.
"""

from collections.abc import Sequence

import numpy as np

from zerogap.train.packing import MicroBatch
from zerogap.types import Sample


class TokenIndex:
    """Where each token of each sample stands."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._end_B = np.cumsum([len(sample) for sample in samples])

    def new_column(self) -> np.ndarray:
        """float32 [S] of NaN, the mark of a slot that nothing has written."""
        return np.full(self._end_B[-1] if len(self._end_B) else 0, np.nan, np.float32)

    def spread(self, values_B: np.ndarray) -> np.ndarray:
        """[S]: each sample's value at all of its tokens."""
        return np.repeat(values_B, [len(sample) for sample in self._samples])

    def slots(self, micro_batch: MicroBatch) -> np.ndarray:
        """int64 [R]: the slot of each target."""
        start_B = self._end_B - [len(sample) for sample in self._samples]
        return start_B[micro_batch.sample_R] + micro_batch.position_R

    def split(self, column_S: np.ndarray) -> list[np.ndarray]:
        """One array [T] a sample."""
        return np.split(column_S, self._end_B[:-1])

    def name(self, slot: int) -> str:
        """How an error calls the token of a slot."""
        at = int(np.searchsorted(self._end_B, slot, side="right"))
        position = slot - (self._end_B[at] - len(self._samples[at]))
        return f"rollout {self._samples[at].rollout_id}, position {position}"
