"""In which micro-batch a sample is computed, and what its loss terms are divided by.

Everything that depends on the whole train batch is decided before the first micro-batch of the first update.
B samples as they were given, in their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import loss_denominators
from zerogap.config.loss import DAPOLossConfig, DrGRPOLossConfig, GRPOLossConfig, LossConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import ConfigError
from zerogap.train.packing import MicroBatch, pack
from zerogap.types import Sample


@dataclass(frozen=True)
class UpdatePlan:
    """One optimizer update."""

    learning: list[MicroBatch]
    """Forward and backward."""
    watching: list[MicroBatch]
    """Forward only: groups whose advantages are all 0 have a gradient of exactly 0, but count in the denominator
    and in every statistic."""
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
    loss: LossConfig,
) -> UpdatePlan:
    """One update of the samples in ``is_member_B``.

    Args:
        samples: as given to the step.
        is_member_B: bool [B]: who trains in this update.
        has_signal_B: bool [B]: samples whose loss may have a gradient; their whole group learns.
        config: for packing.
        loss: for the denominator.
    """
    learns = {
        s.group_id for s, signal in zip(samples, has_signal_B & is_member_B, strict=True) if signal
    }
    learns_B = is_member_B & np.array([sample.group_id in learns for sample in samples])
    return UpdatePlan(
        learning=pack_members(samples, learns_B, config),
        watching=pack_members(samples, is_member_B & ~learns_B, config),
        denominator_B=_denominators(samples, is_member_B, loss),
    )


def pack_members(
    samples: Sequence[Sample], is_member_B: np.ndarray, config: TrainConfig
) -> list[MicroBatch]:
    """Micro-batches of the loss tokens of some samples; they count in the whole list."""
    targets = [s.loss_mask & is_in for s, is_in in zip(samples, is_member_B, strict=True)]
    max_rows = config.micro_batch_tokens
    return pack(samples, targets, max_rows=max_rows, share_prompts=config.share_prompts)


def _denominators(
    samples: Sequence[Sample], is_member_B: np.ndarray, loss: LossConfig
) -> np.ndarray:
    num_loss_tokens_B = np.array([s.num_loss_tokens for s in samples]) * is_member_B
    constant = None
    match loss:
        case GRPOLossConfig():
            kind, constant = loss.denominator, loss.constant_denominator
        case DrGRPOLossConfig():
            kind, constant = "constant", loss.constant_denominator
        case DAPOLossConfig():
            kind = "token"
        case _:
            msg = f"loss.kind = {loss.kind!r}: the trainer has no denominator for it yet; set grpo, dr_grpo or dapo"
            raise ConfigError(msg)
    if kind in ("group", "rollout"):
        msg = f"loss.denominator = {kind!r}: not computed yet; set token, record or constant"
        raise ConfigError(msg)
    return loss_denominators(num_loss_tokens_B, kind=kind, constant=constant)
