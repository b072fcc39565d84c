"""Draw further prompts until enough groups have a signal (DAPO, https://arxiv.org/abs/2503.14476, section 3.2).

A group whose members all have the same reward has advantages of exactly 0 and trains nothing. If the data is too easy or
too hard, most groups of an update are like that. Every round draws as many further prompts as groups are missing, times
``over_sampling``; a limit of rounds stops a policy that solves everything, or nothing, from drawing forever.

The signal is a property of the task's rewards, before any shaping. A length penalty makes the rewards of a group differ
that solved nothing, and its advantages would be as large as those of a group that solved half.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from zerogap.config.sampling_policy import DynamicSamplingConfig
from zerogap.rollout.collect import Rollouts
from zerogap.types import Group, counts_in_group, exclusion_reason


@dataclass(frozen=True, kw_only=True)
class DynamicRollouts:
    """The drawn groups, and those that train."""

    drawn: Rollouts
    """Every group of every round: statistics of the policy count all of them."""
    trained: Rollouts
    """The first groups with a signal, at most as many as wanted; if no group has one, the first ones drawn. All groups, if
    dynamic sampling is off."""
    num_rounds: int
    num_with_signal: int
    """Groups with a signal among ``trained``."""
    num_surplus: int
    """Drawn groups with a signal that do not train, because enough others were drawn before them."""
    num_without_signal: int
    """Drawn groups without a signal."""
    is_starved: bool
    """Whether the rounds ended before enough groups had a signal."""

    @property
    def is_without_signal(self) -> bool:
        """Whether groups were to be chosen by their signal, and no group has one."""
        return self.is_starved and self.num_with_signal == 0


def collect_dynamically(
    collect: Callable[[int, int], Rollouts], *, num_groups: int, config: DynamicSamplingConfig
) -> DynamicRollouts:
    """Rewarded groups; those without a signal are replaced.

    Args:
        collect: (number of prompts, round from 0) -> the rewarded groups of so many fresh prompts, without shaping.
        num_groups: groups of an update.
        config: what a signal is, how much to draw, and how often.
    """
    drawn, found, num_rounds = Rollouts(groups=(), items={}), (), 0
    while len(found) < num_groups and num_rounds < config.max_rounds:
        more = collect(_num_prompts(num_groups - len(found), config.over_sampling), num_rounds)
        drawn = Rollouts(groups=drawn.groups + more.groups, items={**drawn.items, **more.items})
        found = tuple(group for group in drawn.groups if has_signal(group, config))
        num_rounds += 1
    trained = drawn
    if config.is_on:
        chosen = found[:num_groups] or drawn.groups[:num_groups]
        items = {group.group_id: drawn.items[group.group_id] for group in chosen}
        trained = Rollouts(groups=chosen, items=items)
    return DynamicRollouts(
        drawn=drawn,
        trained=trained,
        num_rounds=num_rounds,
        num_with_signal=min(len(found), num_groups),
        num_surplus=max(len(found) - num_groups, 0) if config.is_on else 0,
        num_without_signal=len(drawn.groups) - len(found),
        is_starved=config.is_on and len(found) < num_groups,
    )


def has_signal(group: Group, config: DynamicSamplingConfig) -> bool:
    """Whether a member trains, and the rewards that count in the baseline have the configured signal.

    A masked member has no token that trains, but moves the advantages of the others.
    """
    if all(exclusion_reason(sample) is not None for sample in group.samples):
        return False
    rewards = [s.reward for s in group.samples if counts_in_group(s) and s.reward is not None]
    if config.signal == "reward":
        return len(set(rewards)) > 1
    return len({reward >= config.correct_threshold for reward in rewards}) > 1


def _num_prompts(num_missing: int, over_sampling: float) -> int:
    # Exact in the decimal that the recipe has: as floats, 100 * 1.1 is above 110, and would draw 111.
    return math.ceil(num_missing * Fraction(str(over_sampling)))
