"""What a run says of completions without a reward."""

import pytest
from helpers.samples import completed_sample

from zerogap.errors import RewardFailed
from zerogap.run.failures import FailedRewards
from zerogap.types import Outcome


def failed(detail, outcome=Outcome.VERIFIER_FAILED):
    return completed_sample("x").failed(outcome, detail)


@pytest.fixture
def told():
    lines = []
    failures = FailedRewards(lines.append)

    def take(*samples, step=2, must_have_one=False):
        failures.take(f"step {step}", samples, must_have_one=must_have_one)
        found = list(lines)
        lines.clear()
        return found

    return take


GOOD = completed_sample("y")


def test_each_kind_of_reason_is_told_once_with_its_count(told):
    slow, odd = failed("took longer than 10 s"), failed("ValueError: odd 'a' (r.py, line 3)")
    assert told(GOOD, odd, failed("ValueError: odd 'b' (r.py, line 3)"), slow) == [
        "warning: step 2: no reward for 2 of 4 completions: ValueError: odd 'a' (r.py, line 3)",
        "warning: step 2: no reward for 1 of 4 completions: took longer than 10 s",
    ]
    assert told(GOOD, odd, slow, step=3) == []
    (line,) = told(GOOD, odd, failed("KeyError: 'b' (r.py, line 9)"), step=4)
    assert line == "warning: step 4: no reward for 1 of 3 completions: KeyError: 'b' (r.py, line 9)"


def test_a_text_of_the_completion_in_an_exception_makes_no_new_kind(told):
    texts = ("apples\n and", "pears", "(a, line 7)")
    samples = [failed(f"ValueError: {text} (r.py, line 3)") for text in texts]
    (line,) = told(GOOD, *samples)
    assert line.endswith("3 of 4 completions: ValueError: apples  and (r.py, line 3)")


def test_other_failures_than_of_rewards_say_what_failed(told):
    (line,) = told(GOOD, failed("OSError: no sandbox", Outcome.ENVIRONMENT_FAILED))
    assert line.endswith("1 of 2 completions: environment_failed: OSError: no sandbox")


def test_the_console_is_not_flooded_and_nothing_in_a_reason_can_write_on_it(told):
    lines = [line for k in range(30) for line in told(GOOD, failed("a" * k + "\x1b[2J\n"))]
    assert len(lines) == 21
    assert "not told here" in lines[-1]
    assert all(line.isprintable() for line in lines)
    (line,) = told_of_first(failed("b" * 10**5))
    assert len(line) < 500


def told_of_first(*samples):
    lines = []
    FailedRewards(lines.append).take("step 1", (GOOD, *samples), must_have_one=True)
    return lines


def test_a_start_without_any_reward_is_an_error_with_the_reasons_and_their_counts(told):
    samples = [failed("TypeError: f() takes 1"), failed("TypeError: f() takes 1"), failed("slow")]
    with pytest.raises(RewardFailed) as refused:
        told(*samples, step=1, must_have_one=True)
    message = str(refused.value)
    assert message.startswith("step 1: none of 3 completions got a reward")
    assert "\n  2 times: TypeError: f() takes 1\n  1 times: slow\n" in message
    assert "run the same command again" in message


def test_one_reward_or_no_sample_at_all_is_a_start(told):
    assert len(told(GOOD, failed("slow"), step=1, must_have_one=True)) == 1
    assert told(step=1, must_have_one=True) == []
    assert len(told(failed("fast"), step=5)) == 1
