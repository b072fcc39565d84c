"""The variance-minimal baseline of each token."""

from typing import ClassVar, Literal

import numpy as np

from zerogap.algorithms.advantages.base import AdvantageConfig, AdvantageInputs, Advantages
from zerogap.algorithms.group_statistics import group_advantages
from zerogap.algorithms.returns import optimal_token_baselines, returns_to_go


class TokenBaselineAdvantage(AdvantageConfig):
    """Return minus the optimal token baseline (OTB, https://arxiv.org/abs/2602.07078).

        A_it = G_it - B_t,   B_t = sum_i G_it W_it / sum_i W_it,   W_it = sum over j <= t of (1 - 2 p_ij + sum_v p_ijv ** 2)

    over the members i of a group that are still going on at their t-th trainable token. W is the squared norm of the gradient
    by the logits, added up from the start: a member whose tokens were certain says little. Where only one member is left
    its baseline is 0, as in the authors' implementation. Costs old log-probs and one statistic of each token's
    distribution, before the first update.
    """

    kind: Literal["token_baseline"] = "token_baseline"
    """How."""
    compares_within_group: ClassVar[bool] = True
    needs_old_log_probs: ClassVar[bool] = True

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """See the class."""
        assert inputs.old_log_probs_S is not None, "this kind asks for old log-probs"
        assert inputs.square_sums_S is not None, "this kind asks for the distribution's statistic"
        mask_S, name = inputs.loss_mask_S, inputs.name_token
        groups = group_advantages(inputs.rewards_B, inputs.group_ids, inputs.stands_for_rollout_B)
        returns_S = returns_to_go(
            inputs.token_rewards(inputs.rewards_B), mask_S, inputs.rollout_S, name_token=name
        )
        baselines_S = optimal_token_baselines(
            returns_S,
            inputs.old_log_probs_S,
            inputs.square_sums_S,
            mask_S,
            inputs.rollout_S,
            inputs.group_ids,
            name_token=name,
        )
        return Advantages(np.where(mask_S, returns_S - baselines_S, np.nan), groups)
