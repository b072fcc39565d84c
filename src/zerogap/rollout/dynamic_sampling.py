"""Draw further prompts until enough groups have a signal (DAPO, https://arxiv.org/abs/2503.14476, section 3.2).

A group whose valid members all have the same reward has advantages of exactly 0 and trains nothing. If the data is too
easy or too hard, most groups of an update are like that. Every round draws as many further prompts as groups are
missing; a limit of rounds stops a policy that solves everything, or nothing, from drawing forever.
"""

from collections.abc import Callable
from dataclasses import dataclass

from zerogap.rollout.collect import Rollouts
from zerogap.types import Group, exclusion_reason


@dataclass(frozen=True, kw_only=True)
class DynamicRollouts:
    """The drawn groups, and those that train."""

    drawn: Rollouts
    """Every group of every round: statistics of the policy count all of them."""
    trained: Rollouts
    """The groups with a signal, at most as many as wanted; if no group has one, the first ones drawn."""
    num_rounds: int
    num_with_signal: int
    """Groups with a signal among ``trained``."""
    is_starved: bool
    """Whether the rounds ended before enough groups had a signal."""


def collect_dynamically(
    collect: Callable[[int, int], Rollouts], *, num_groups: int, max_rounds: int
) -> DynamicRollouts:
    """Rewarded groups; those without a signal are replaced.

    Args:
        collect: (number of prompts, round from 0) -> the rewarded groups of so many fresh prompts.
        num_groups: groups of an update.
        max_rounds: most calls of ``collect``; with 1 nothing is replaced.
    """
    drawn = collect(num_groups, 0)
    found, num_rounds = _with_signal(drawn), 1
    while len(found) < num_groups and num_rounds < max_rounds:
        more = collect(num_groups - len(found), num_rounds)
        drawn = Rollouts(groups=drawn.groups + more.groups, items={**drawn.items, **more.items})
        found, num_rounds = _with_signal(drawn), num_rounds + 1
    trained = found or drawn.groups[:num_groups]
    items = {group.group_id: drawn.items[group.group_id] for group in trained}
    return DynamicRollouts(
        drawn=drawn,
        trained=drawn if max_rounds == 1 else Rollouts(groups=trained, items=items),
        num_rounds=num_rounds,
        num_with_signal=len(found),
        is_starved=max_rounds > 1 and len(found) < num_groups,
    )


def has_signal(group: Group) -> bool:
    """Whether the members that take part in a step have different rewards."""
    rewards = {sample.reward for sample in group.samples if exclusion_reason(sample) is None}
    return len(rewards) > 1


def _with_signal(drawn: Rollouts) -> tuple[Group, ...]:
    return tuple(filter(has_signal, drawn.groups))
