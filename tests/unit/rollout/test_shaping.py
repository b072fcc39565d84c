import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.samples import completed_sample, make_output
from helpers.tolerance import EXACT

from zerogap.errors import RewardFailed
from zerogap.rollout import by_completion_len
from zerogap.rollout.shaping import mask_truncated, shaped
from zerogap.types import FinishReason, Outcome, Sample


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


def test_a_truncated_sample_is_masked_and_its_record_stays_what_happened():
    output = make_output(finish_reason=FinishReason("length"))
    cut = Sample.from_output(output, group_id="g", temperature=1.0).scored(0.25, {"format": 0.25})
    whole, failed = completed_sample().scored(1.0), completed_sample().failed(Outcome.ABORTED, "x")
    first, second, third = mask_truncated([whole, cut, failed])
    assert (first, third) == (whole, failed)
    assert (second.num_loss_tokens, cut.num_loss_tokens) == (0, 2)
    kept = ("outcome", "reward", "reward_parts", "text", "turns", "num_completion_tokens")
    assert [getattr(second, name) for name in kept] == [getattr(cut, name) for name in kept]
    EXACT.check(second.rollout_log_probs[2:], cut.rollout_log_probs[2:])
