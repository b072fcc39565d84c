"""A loss and an advantage of one's own, for ``loss.kind = "import"`` and ``advantage.kind = "import"``."""

import numpy as np
from torch import Tensor

from zerogap.algorithms import AdvantageInputs, LossTerms


def squared_ratio(terms: LossTerms, strength: float) -> Tensor:
    """The policy gradient with a quadratic pull of the ratio to 1 (SPO's form)."""
    pull = strength * terms.advantages_T.abs() * (terms.ratio_T - 1) ** 2
    return pull - terms.ratio_T * terms.advantages_T


def rank_in_group(inputs: AdvantageInputs) -> np.ndarray:
    """Between -1 and 1 by the rank of the reward within its group; 0 in the middle and for ties of all."""
    advantages = np.zeros(len(inputs.rewards_B))
    groups = np.array(inputs.group_ids)
    for group in set(inputs.group_ids):
        members = np.flatnonzero((groups == group) & inputs.is_valid_B)
        rewards = inputs.rewards_B[members]
        above = (rewards[:, None] > rewards).sum(1) - (rewards[:, None] < rewards).sum(1)
        advantages[members] = above / max(len(members) - 1, 1)
    return advantages
