import itertools
import math

import pytest
from helpers.planted_fault import assert_notices
from helpers.samples import completed_sample, make_output
from hypothesis import given
from hypothesis import strategies as st

from zerogap.config import DynamicSamplingConfig
from zerogap.data import PromptItem
from zerogap.rollout import Rollouts, collect_dynamically
from zerogap.rollout.dynamic_sampling import has_signal
from zerogap.types import FinishReason, Group, Outcome, Sample

ITEM = PromptItem(item_id="i", question="q")


REWARD = DynamicSamplingConfig(max_rounds=2)


def rounds(max_rounds: int, over_sampling: float = 1.0) -> DynamicSamplingConfig:
    return DynamicSamplingConfig(max_rounds=max_rounds, over_sampling=over_sampling)


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
    result = collect_dynamically(draws, num_groups=4, config=rounds(5))
    assert draws.asked == [(4, 0), (2, 1), (1, 2)]
    assert [g.group_id for g in result.trained.groups] == ["r0-0", "r0-3", "r1-1", "r2-0"]
    assert len(result.drawn.groups) == 7
    assert (result.num_rounds, result.num_with_signal, result.is_starved) == (3, 4, False)


def test_a_policy_that_solves_everything_does_not_draw_for_ever():
    draws = Draws([])
    result = collect_dynamically(draws, num_groups=3, config=rounds(4))
    assert len(draws.asked) == 4
    assert (result.num_with_signal, result.is_starved) == (0, True)
    # Something has to be trained on: the first groups, whose advantages are 0.
    assert [g.group_id for g in result.trained.groups] == ["r0-0", "r0-1", "r0-2"]


def test_too_few_groups_are_better_than_groups_without_signal():
    result = collect_dynamically(Draws([False, True]), num_groups=3, config=rounds(2))
    assert [g.group_id for g in result.trained.groups] == ["r0-1"]
    assert result.is_starved
    assert len(result.drawn.groups) == 5


def test_one_round_replaces_nothing():
    result = collect_dynamically(Draws([True, False]), num_groups=2, config=rounds(1))
    assert result.trained is result.drawn
    assert (result.num_with_signal, result.is_starved, result.num_surplus) == (1, False, 0)


def test_a_failed_member_is_no_signal():
    good, bad = (completed_sample(group_id="g").scored(1.0) for _ in range(2))
    failed = bad.failed(Outcome.VERIFIER_FAILED, "it raised")
    assert not has_signal(Group(group_id="g", samples=(good, failed)), REWARD)
    assert has_signal(Group(group_id="g", samples=(good, good.scored(0.0), failed)), REWARD)


@pytest.mark.parametrize(
    ("rewards", "by_reward", "by_accuracy"),
    [
        ((0.0, 0.1), True, False),  # one is better formatted, none is right
        ((0.0, 1.0), True, True),
        ((0.5, 1.0), True, False),  # the threshold itself is right
        ((0.49, 0.5), True, True),
        ((1.0, 1.0), False, False),
        ((0.0,), False, False),
    ],
)
def test_accuracy_asks_for_right_and_wrong_completions_not_for_different_rewards(
    rewards, by_reward, by_accuracy
):
    accuracy = DynamicSamplingConfig(max_rounds=2, signal="accuracy")
    members = group("g", rewards)
    assert (has_signal(members, REWARD), has_signal(members, accuracy)) == (by_reward, by_accuracy)


def test_the_threshold_of_accuracy_can_be_moved():
    strict = DynamicSamplingConfig(max_rounds=2, signal="accuracy", correct_threshold=1.0)
    assert has_signal(group("g", (0.9, 1.0)), strict)
    assert not has_signal(group("g", (0.0, 0.9)), strict)


def test_a_masked_member_gives_others_a_signal_but_has_none_itself():
    def truncated(reward: float) -> Sample:
        output = make_output(finish_reason=FinishReason("length"))
        return Sample.from_output(output, group_id="g", temperature=1.0).scored(reward).masked()

    trains = completed_sample().scored(1.0)
    assert has_signal(Group(group_id="g", samples=(trains, truncated(0.0))), REWARD)
    assert not has_signal(Group(group_id="g", samples=(trains, truncated(1.0))), REWARD)
    assert not has_signal(Group(group_id="g", samples=(truncated(0.0), truncated(1.0))), REWARD)


def test_over_sampling_draws_more_a_round_and_takes_the_first_with_a_signal():
    draws = Draws([False, True, False, True, False, False, True, True])
    result = collect_dynamically(draws, num_groups=3, config=rounds(4, over_sampling=2.0))
    # 6 for the 3 that are missing, then 2 for 1.
    assert draws.asked == [(6, 0), (2, 1)]
    assert [g.group_id for g in result.trained.groups] == ["r0-1", "r0-3", "r1-0"]
    assert (len(result.drawn.groups), result.num_surplus, result.num_without_signal) == (8, 1, 4)
    assert set(result.trained.items) == {"r0-1", "r0-3", "r1-0"}
    assert (result.num_with_signal, result.is_starved) == (3, False)


def test_over_sampling_in_one_round_draws_nothing_again():
    draws = Draws([False, True, False])
    result = collect_dynamically(draws, num_groups=2, config=rounds(1, over_sampling=1.5))
    assert draws.asked == [(3, 0)]
    assert [g.group_id for g in result.trained.groups] == ["r0-1"]
    assert result.is_starved


@pytest.mark.parametrize(("num_groups", "factor", "asked"), [(100, 1.1, 110), (3, 1.1, 4), (7, 1.0, 7), (10, 1.25, 13)])  # fmt: skip
def test_the_number_of_prompts_is_rounded_up_from_the_decimal_of_the_recipe(num_groups, factor, asked):  # fmt: skip
    def check(count: int) -> None:
        assert count == asked

    draws = Draws([True] * asked)
    collect_dynamically(draws, num_groups=num_groups, config=rounds(1, over_sampling=factor))
    check(draws.asked[0][0])
    if (num_groups, factor) == (100, 1.1):
        assert_notices("a product of floats", lambda: check(math.ceil(num_groups * factor)))


@given(
    st.lists(st.booleans(), max_size=30),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from([1.0, 1.3, 2.5]),
)
def test_no_group_is_lost_or_trained_twice(signals, num_groups, max_rounds, over_sampling):
    draws, config = Draws(signals), rounds(max_rounds, over_sampling)
    result = collect_dynamically(draws, num_groups=num_groups, config=config)
    assert len(draws.asked) == result.num_rounds <= max_rounds
    names = [g.group_id for g in result.drawn.groups]
    assert len(names) == len(set(names)) == sum(count for count, _ in draws.asked)
    trained = [g.group_id for g in result.trained.groups]
    assert set(trained) <= set(names)
    assert 0 < len(trained) <= num_groups
    assert set(result.trained.items) == set(trained)
    with_signal = [g.group_id for g in result.drawn.groups if has_signal(g, config)]
    assert result.num_without_signal == len(names) - len(with_signal)
    if config.is_on:
        assert result.is_starved == (result.num_with_signal < num_groups)
        assert trained == (with_signal or names)[:num_groups]
        assert result.num_surplus == len(with_signal) - result.num_with_signal


@pytest.mark.parametrize("max_rounds", [1, 3])
def test_prompts_of_every_group_are_known(max_rounds):
    result = collect_dynamically(Draws([True]), num_groups=2, config=rounds(max_rounds))
    assert set(result.drawn.items) == {g.group_id for g in result.drawn.groups}
