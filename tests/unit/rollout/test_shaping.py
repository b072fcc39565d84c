import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.samples import completed_sample

from zerogap.errors import RewardFailed
from zerogap.rollout import by_completion_len
from zerogap.rollout.shaping import shaped
from zerogap.types import Outcome


def half_a_token(lengths):
    return -0.5 * lengths


OVERLONG = {"overlong": by_completion_len(half_a_token)}


def check_adds_up(sample, verified):
    assert sample.reward == verified + sample.reward_parts["overlong"]
    assert sample.reward_parts["overlong"] == -1.0


def test_an_amount_is_added_and_becomes_a_part_of_the_reward():
    scored = completed_sample().scored(0.75, {"format": 0.5})
    failed = completed_sample().failed(Outcome.VERIFIER_FAILED, "timeout")
    first, second = shaped([failed, scored], OVERLONG)
    assert first is failed
    check_adds_up(second, 0.75)
    assert second.reward_parts["format"] == 0.5
    assert_notices(
        "not added", lambda: check_adds_up(scored.scored(0.75, {"overlong": -1.0}), 0.75)
    )


def test_the_length_is_that_of_what_the_policy_wrote():
    seen = []

    def remember(lengths):
        seen.append(lengths.tolist())
        return np.zeros(len(lengths))

    shaped([completed_sample().scored(1.0)] * 2, {"overlong": by_completion_len(remember)})
    assert seen == [[2, 2]]


def test_no_shaping_changes_nothing():
    samples = [completed_sample().scored(0.5)]
    assert shaped(samples, {}) == samples


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(RewardFailed, match=r"a part 'overlong'.*rename the part"):
        shaped([completed_sample().scored(1.0, {"overlong": 0.0})], OVERLONG)
