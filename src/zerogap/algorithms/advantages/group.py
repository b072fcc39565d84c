"""Advantages relative to the other completions of the same prompt."""

from typing import ClassVar, Literal

from zerogap.algorithms.advantages.base import AdvantageConfig, AdvantageInputs, Advantages
from zerogap.algorithms.group_statistics import Baseline, Divisor, group_advantages

Std = Literal["group", "batch", "batch_advantage", "none"]
_DIVISOR: dict[Std, Divisor] = {
    "group": "group_std",
    "batch": "batch_std",
    "batch_advantage": "batch_advantage_std",
    "none": "none",
}


class _WithinGroup(AdvantageConfig):
    compares_within_group: ClassVar[bool] = True

    def _compare(self, inputs: AdvantageInputs, baseline: Baseline, divisor: Divisor) -> Advantages:
        groups = group_advantages(
            inputs.rewards_B,
            inputs.group_ids,
            inputs.stands_for_rollout_B,
            baseline=baseline,
            divisor=divisor,
            penalties_B=inputs.penalties_B,
        )
        return Advantages(inputs.spread(groups.advantages), groups)


class GroupAdvantage(_WithinGroup):
    """Reward minus the group's mean (GRPO, https://arxiv.org/abs/2402.03300, section 4.1.2)."""

    kind: Literal["group"] = "group"
    """How."""
    std: Std = "group"
    """Divide by the standard deviation of: group: the group's rewards; batch: the train batch's rewards; batch_advantage: the
    train batch's rewards minus their group's mean; none: 1."""

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """See the class."""
        return self._compare(inputs, "mean", _DIVISOR[self.std])


class LeaveOneOutAdvantage(_WithinGroup):
    """Reward minus the mean of the group's other members (RLOO, https://arxiv.org/abs/2402.14740)."""

    kind: Literal["leave_one_out"] = "leave_one_out"
    """How."""
    std: Std = "none"
    """Divide by a standard deviation, as with kind = "group"."""

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """See the class."""
        return self._compare(inputs, "leave_one_out", _DIVISOR[self.std])


class MaxRLAdvantage(_WithinGroup):
    """(reward - group mean) / group mean; 0 where no member has a reward (MaxRL, https://arxiv.org/abs/2602.02710).

    With rewards of 0 and 1 it estimates the gradient of the log of the success probability, truncated at the group's size:
    hard prompts weigh more. Rewards must not be negative.
    """

    kind: Literal["maxrl"] = "maxrl"
    """How."""

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """See the class."""
        return self._compare(inputs, "mean", "group_mean")
