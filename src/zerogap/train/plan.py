"""Who takes part in a step, in which update, in which micro-batch, and what the loss is divided by.

Everything that depends on the whole train batch is decided here, before the first micro-batch is computed.
B samples as they were given, in their order.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import Exclusion, exclusion_reason, loss_denominators
from zerogap.config.loss import LossConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import DataError, NumericsError
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


@dataclass(frozen=True)
class StepPlan:
    """All updates of a step."""

    updates: list[UpdatePlan]
    excluded: Counter[Exclusion]
    """How many samples were left out, by reason."""


def plan_step(
    samples: Sequence[Sample],
    advantages: Sequence[float],
    *,
    config: TrainConfig,
    loss: LossConfig,
    vocab_limit: int,
) -> StepPlan:
    """Check the samples and decide the step.

    Raises:
        DataError: nothing trains, or ids outside the vocabulary.
        NumericsError: a sample that trains has no finite advantage.
    """
    reasons = [exclusion_reason(sample) for sample in samples]
    kept = [i for i, reason in enumerate(reasons) if reason is None]
    excluded = Counter(reason for reason in reasons if reason is not None)
    if len(advantages) != len(samples):
        msg = f"{len(samples)} samples and {len(advantages)} advantages were given: every sample needs one (NaN if it is excluded)"
        raise DataError(msg)
    if not kept:
        msg = f"none of the {len(samples)} samples trains ({dict(excluded)}): there is no gradient; skip the step"
        raise DataError(msg)
    for i in kept:
        check_ids(samples[i], vocab_limit)
        if not np.isfinite(advantages[i]):
            msg = f"rollout {samples[i].rollout_id} trains, but its advantage is {advantages[i]}; give it a finite one or an invalid outcome"
            raise NumericsError(msg)
    parts = _split_by_prompt(samples, kept, config.updates_per_step)
    updates = [_plan_update(samples, advantages, part, config, loss) for part in parts]
    return StepPlan(updates, excluded)


def check_ids(sample: Sample, vocab_limit: int) -> None:
    """Refuse a sample with ids outside the vocabulary."""
    if len(sample) and (largest := int(sample.token_ids.max())) >= vocab_limit:
        msg = f"rollout {sample.rollout_id}: token id {largest} is outside the vocabulary of {vocab_limit}; samples and model belong to different tokenizers"
        raise DataError(msg)


def _split_by_prompt(
    samples: Sequence[Sample], kept: Sequence[int], num_parts: int
) -> list[list[int]]:
    """Whole groups, so that prompts stay shared; fewer parts than asked if there are fewer groups."""
    group_ids = list(dict.fromkeys(samples[i].group_id for i in kept))
    part_of: dict[str, int] = {}
    for part, chunk in enumerate(np.array_split(np.arange(len(group_ids)), num_parts)):
        part_of.update({group_ids[g]: part for g in chunk})
    parts = [[i for i in kept if part_of[samples[i].group_id] == p] for p in range(num_parts)]
    return [part for part in parts if part]


def _plan_update(
    samples: Sequence[Sample],
    advantages: Sequence[float],
    part: Sequence[int],
    config: TrainConfig,
    loss: LossConfig,
) -> UpdatePlan:
    num_loss_tokens_B = np.zeros(len(samples), np.int64)
    num_loss_tokens_B[part] = [samples[i].num_loss_tokens for i in part]
    has_signal = {samples[i].group_id for i in part if advantages[i] != 0}
    if loss.kl.coefficient > 0:
        has_signal = {samples[i].group_id for i in part}

    def pack_those(members: Sequence[int]) -> list[MicroBatch]:
        nothing = [np.zeros(len(sample), bool) for sample in samples]
        chosen = set(members)
        targets = [s.loss_mask if i in chosen else nothing[i] for i, s in enumerate(samples)]
        max_rows = config.micro_batch_tokens
        return pack(samples, targets, max_rows=max_rows, share_prompts=config.share_prompts)

    return UpdatePlan(
        learning=pack_those([i for i in part if samples[i].group_id in has_signal]),
        watching=pack_those([i for i in part if samples[i].group_id not in has_signal]),
        denominator_B=loss_denominators(
            num_loss_tokens_B, kind=loss.denominator, constant=loss.constant_denominator
        ),
    )
