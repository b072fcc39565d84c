"""What each token of a step is worth, decided over the whole train batch before the first update."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import GroupAdvantages, group_advantages
from zerogap.config.loss import DAPOLossConfig, DrGRPOLossConfig, GRPOLossConfig, LossConfig
from zerogap.errors import ConfigError
from zerogap.train.token_index import TokenIndex
from zerogap.types import Sample


@dataclass(frozen=True)
class Advantages:
    """Of the tokens of all samples as they were given."""

    column_S: np.ndarray
    """float64 [S]; NaN for samples that have no part in the step."""
    groups: GroupAdvantages | None
    """What was found out about the groups, where they were compared."""


def decide_advantages(
    samples: Sequence[Sample], is_kept_B: np.ndarray, index: TokenIndex, loss: LossConfig
) -> Advantages:
    """Advantages of the samples that take part.

    Args:
        samples: as given to the step.
        is_kept_B: bool [B]: samples that take part.
        index: of these samples.
        loss: which advantages.
    """
    match loss:
        case GRPOLossConfig(normalize_std=normalize_std):
            groups = _compare(samples, is_kept_B, normalize_std=normalize_std)
        case DrGRPOLossConfig():
            groups = _compare(samples, is_kept_B, normalize_std=False)
        case DAPOLossConfig():
            groups = _compare(samples, is_kept_B, normalize_std=True)
        case _:
            msg = f"loss.kind = {loss.kind!r}: the trainer has no advantages for it yet; set grpo, dr_grpo or dapo"
            raise ConfigError(msg)
    return Advantages(index.spread(groups.advantages), groups)


def _compare(
    samples: Sequence[Sample], is_kept_B: np.ndarray, *, normalize_std: bool
) -> GroupAdvantages:
    rewards_B = np.array([np.nan if s.reward is None else s.reward for s in samples])
    ids = [sample.group_id for sample in samples]
    return group_advantages(rewards_B, ids, is_kept_B, normalize_std=normalize_std)
