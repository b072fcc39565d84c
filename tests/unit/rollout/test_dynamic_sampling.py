import itertools

import pytest
from helpers.samples import completed_sample
from hypothesis import given
from hypothesis import strategies as st

from zerogap.data import PromptItem
from zerogap.rollout import Rollouts, collect_dynamically
from zerogap.rollout.dynamic_sampling import has_signal
from zerogap.types import Group, Outcome

ITEM = PromptItem(item_id="i", question="q")


def group(name: str, rewards) -> Group:
    samples = (completed_sample(group_id=name).scored(reward) for reward in rewards)
    return Group(group_id=name, samples=tuple(samples))


class Draws:
    """Gives out groups with the listed signals, in order, and remembers the calls."""

    def __init__(self, signals):
        self.signals = itertools.chain(signals, itertools.repeat(False))
        self.asked = []

    def __call__(self, count, number):
        self.asked.append((count, number))
        rewards = [(0.0, 1.0) if next(self.signals) else (1.0, 1.0) for _ in range(count)]
        groups = [group(f"r{number}-{place}", given) for place, given in enumerate(rewards)]
        return Rollouts(groups=tuple(groups), items={one.group_id: ITEM for one in groups})


def test_each_round_draws_as_many_prompts_as_groups_are_missing():
    draws = Draws([True, False, False, True, False, True, True])
    result = collect_dynamically(draws, num_groups=4, max_rounds=5)
    assert draws.asked == [(4, 0), (2, 1), (1, 2)]
    assert [g.group_id for g in result.trained.groups] == ["r0-0", "r0-3", "r1-1", "r2-0"]
    assert len(result.drawn.groups) == 7
    assert (result.num_rounds, result.num_with_signal, result.is_starved) == (3, 4, False)


def test_a_policy_that_solves_everything_does_not_draw_for_ever():
    draws = Draws([])
    result = collect_dynamically(draws, num_groups=3, max_rounds=4)
    assert len(draws.asked) == 4
    assert (result.num_with_signal, result.is_starved) == (0, True)
    # Something has to be trained on: the first groups, whose advantages are 0.
    assert [g.group_id for g in result.trained.groups] == ["r0-0", "r0-1", "r0-2"]


def test_too_few_groups_are_better_than_groups_without_signal():
    result = collect_dynamically(Draws([False, True]), num_groups=3, max_rounds=2)
    assert [g.group_id for g in result.trained.groups] == ["r0-1"]
    assert result.is_starved
    assert len(result.drawn.groups) == 5


def test_one_round_replaces_nothing():
    result = collect_dynamically(Draws([True, False]), num_groups=2, max_rounds=1)
    assert result.trained is result.drawn
    assert (result.num_with_signal, result.is_starved) == (1, False)


def test_a_failed_member_is_no_signal():
    good, bad = (completed_sample(group_id="g").scored(1.0) for _ in range(2))
    failed = bad.failed(Outcome.VERIFIER_FAILED, "it raised")
    assert not has_signal(Group(group_id="g", samples=(good, failed)))
    assert has_signal(Group(group_id="g", samples=(good, good.scored(0.0), failed)))


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 6), st.integers(1, 5))
def test_no_group_is_lost_or_trained_twice(signals, num_groups, max_rounds):
    draws = Draws(signals)
    result = collect_dynamically(draws, num_groups=num_groups, max_rounds=max_rounds)
    assert len(draws.asked) == result.num_rounds <= max_rounds
    names = [g.group_id for g in result.drawn.groups]
    assert len(names) == len(set(names)) == sum(count for count, _ in draws.asked)
    trained = [g.group_id for g in result.trained.groups]
    assert set(trained) <= set(names)
    assert 0 < len(trained) <= num_groups
    assert set(result.trained.items) == set(trained)
    if max_rounds > 1:
        assert result.is_starved == (result.num_with_signal < num_groups)
        with_signal = [g.group_id for g in result.drawn.groups if has_signal(g)]
        assert trained == (with_signal or names[:num_groups])


@pytest.mark.parametrize("max_rounds", [1, 3])
def test_prompts_of_every_group_are_known(max_rounds):
    result = collect_dynamically(Draws([True]), num_groups=2, max_rounds=max_rounds)
    assert set(result.drawn.items) == {g.group_id for g in result.drawn.groups}
