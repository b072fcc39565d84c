"""Advantages from a critic: PPO."""

from typing import Literal

import numpy as np
from pydantic import Field

from zerogap.algorithms.advantages.base import AdvantageConfig, AdvantageInputs, Advantages
from zerogap.algorithms.returns import gae_advantages, normalized_over_tokens


class CriticAdvantage(AdvantageConfig):
    """Generalised advantage estimates (https://arxiv.org/abs/1506.02438, eq. 16) on the values of a second model.

    The reward comes with the last token. With lambda below 1 the first of T tokens sees it only through the critic, and
    directly with a weight of lambda ** (T - 1): 4e-5 at 0.95 and 200 tokens. So both lambdas are 1 unless set.
    """

    kind: Literal["critic"] = "critic"
    """How."""
    discount: float = Field(1.0, gt=0, le=1)
    """Discount per trainable token (gamma)."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """Weight of longer advantage estimates for the policy; 1 uses the rewards alone, 0 the critic's next value."""
    critic_lambda: float = Field(1.0, ge=0, le=1)
    """The same for the critic's targets (VAPO, https://arxiv.org/abs/2504.05118, decouples the two)."""
    std: Literal["batch", "none"] = "batch"
    """batch: mean 0 and standard deviation 1 over the trainable tokens of the train batch; none: as they are."""
    learning_rate: float = Field(1e-5, gt=0)
    """The critic's; constant after train.warmup_steps."""
    value_clip: float = Field(0.2, ge=0)
    """How far a value may move from the start of the step before its gradient stops; 0: no limit."""
    warmup_steps: int = Field(0, ge=0)
    """Number of first steps that train only the critic."""

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """See the class."""
        assert inputs.values_S is not None, "this kind has a critic"
        mask_S, name = inputs.loss_mask_S, inputs.name_token
        rewards_S = inputs.token_rewards(inputs.rewards_B)

        def estimates(gae_lambda: float) -> np.ndarray:
            return gae_advantages(
                rewards_S,
                inputs.values_S,
                mask_S,
                inputs.rollout_S,
                discount=self.discount,
                gae_lambda=gae_lambda,
                name_token=name,
            )

        column_S = estimates(self.gae_lambda)
        targets_S = estimates(self.critic_lambda) + np.where(mask_S, inputs.values_S, 0.0)
        if self.std == "batch":
            column_S = normalized_over_tokens(column_S, mask_S, name_token=name)
        return Advantages(np.where(mask_S, column_S, np.nan), returns_S=targets_S)
