"""Rewards still to come, normalised over the train batch."""

from typing import Literal

import numpy as np
from pydantic import Field

from zerogap.algorithms.advantages.base import AdvantageConfig, AdvantageInputs, Advantages
from zerogap.algorithms.group_statistics import group_advantages
from zerogap.algorithms.returns import normalized_over_tokens, returns_to_go


class ReturnAdvantage(AdvantageConfig):
    """The sum of a token's reward and all later ones of its rollout (REINFORCE++, https://arxiv.org/abs/2501.03262).

    With one reward at the end and no penalty it is the reward. The KL's penalties are part of it, token by token, and of the
    standard deviation, as published.
    """

    kind: Literal["return"] = "return"
    """How."""
    baseline: Literal["none", "group"] = "none"
    """group: subtract the group's mean from the reward first ("REINFORCE++-baseline")."""
    std: Literal["batch", "none"] = "batch"
    """batch: mean 0 and standard deviation 1 over the trainable tokens of the train batch; none: as they are."""
    discount: float = Field(1.0, gt=0, le=1)
    """Discount per trainable token (gamma)."""

    @property
    def compares_within_group(self) -> bool:  # pyrefly: ignore[bad-override]
        """Whether the advantage of a completion depends on others of the same prompt."""
        return self.baseline == "group"

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """See the class."""
        rewards_B, groups = inputs.rewards_B, None
        if self.baseline == "group":
            groups = group_advantages(rewards_B, inputs.group_ids, inputs.stands_for_rollout_B)
            rewards_B = inputs.of_rollout(groups.advantages)
        mask_S, name = inputs.loss_mask_S, inputs.name_token
        column_S = returns_to_go(
            inputs.token_rewards(rewards_B),
            mask_S,
            inputs.rollout_S,
            discount=self.discount,
            name_token=name,
        )
        if self.std == "batch":
            column_S = normalized_over_tokens(column_S, mask_S, name_token=name)
        return Advantages(np.where(mask_S, column_S, np.nan), groups)
