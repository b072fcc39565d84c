"""In which micro-batch a sample is computed, and what its loss terms are divided by.

Everything that depends on the whole train batch is decided before the first micro-batch of the first update.
B samples as they were given, in their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.config.train import TrainConfig
from zerogap.train.packing import MicroBatch, pack
from zerogap.types import Sample


@dataclass(frozen=True)
class UpdatePlan:
    """One optimizer update."""

    learning: list[MicroBatch]
    """Forward and backward."""
    watching: list[MicroBatch]
    """Forward only: groups whose advantages are all 0 have a gradient of exactly 0, but count in the denominator
    and in every statistic. Everything, while a critic is trained alone."""
    is_member_B: np.ndarray
    """bool [B]: the samples of its train batch."""
    denominator_B: np.ndarray
    """float64 [B]: of the loss terms of each sample, over this update's train batch; infinite outside it."""

    @property
    def micro_batches(self) -> list[MicroBatch]:
        """All of them."""
        return self.learning + self.watching


def plan_update(
    samples: Sequence[Sample],
    is_member_B: np.ndarray,
    has_signal_B: np.ndarray,
    *,
    config: TrainConfig,
    denominator_B: np.ndarray,
) -> UpdatePlan:
    """One update of the samples in ``is_member_B``.

    Args:
        samples: as given to the step.
        is_member_B: bool [B]: who trains in this update.
        has_signal_B: bool [B]: samples whose loss may have a gradient; their whole group learns.
        config: for packing.
        denominator_B: as the plan has it.
    """
    learns = {
        s.group_id for s, signal in zip(samples, has_signal_B & is_member_B, strict=True) if signal
    }
    learns_B = is_member_B & np.array([sample.group_id in learns for sample in samples])
    return UpdatePlan(
        learning=pack_members(samples, learns_B, config),
        watching=pack_members(samples, is_member_B & ~learns_B, config),
        is_member_B=is_member_B,
        denominator_B=denominator_B,
    )


def pack_members(
    samples: Sequence[Sample], is_member_B: np.ndarray, config: TrainConfig
) -> list[MicroBatch]:
    """Micro-batches of the loss tokens of some samples; they count in the whole list."""
    targets = [s.loss_mask & is_in for s, is_in in zip(samples, is_member_B, strict=True)]
    max_rows = config.micro_batch_tokens
    return pack(samples, targets, max_rows=max_rows, share_prompts=config.share_prompts)
