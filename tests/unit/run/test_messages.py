"""The warnings of a run."""

from dataclasses import replace

from helpers.loss_cases import CASES, gradients_of
from helpers.samples import completed_sample

from zerogap.rollout import Rollouts
from zerogap.run.messages import (
    describe_failures,
    describe_missing_signal,
    warning_of_audit,
    warning_of_truncation,
)
from zerogap.train import OldLogProbAudit
from zerogap.types import Group, Outcome, SamplingParams


def test_log_probs_that_should_be_equal_and_are_not_are_a_warning_that_names_one():
    assert warning_of_audit(1, OldLogProbAudit(num_taken=10, num_audited=5)) is None
    audit = OldLogProbAudit(
        num_audited=5, num_different=2, first_difference="rollout g/1, position 3: -1 and -2"
    )
    warning = warning_of_audit(1, audit)
    assert "warning: step 1: 2 of 5" in warning
    assert "rollout g/1, position 3" in warning


def test_sampling_from_a_cut_down_set_is_a_warning_that_names_what_cuts():
    assert warning_of_truncation(SamplingParams(temperature=0.7)) is None
    assert "top_p = 0.9" in warning_of_truncation(SamplingParams(top_p=0.9))


def test_a_step_without_a_signal_says_that_nothing_moved():
    trained = gradients_of(CASES["grpo, corrected"])[1]
    assert describe_missing_signal(3, trained) is None
    without = replace(trained, num_updates=1, num_updates_without_signal=1)
    assert "step 3: no sample has a gradient" in describe_missing_signal(3, without)
    some = replace(trained, num_updates=4, num_updates_without_signal=1)
    assert "step 3: in 1 of 4 updates no sample has" in describe_missing_signal(3, some)


def test_why_no_sample_trains_names_masked_ones():
    cut = replace(completed_sample().scored(0.0), outcome=Outcome.TRUNCATED).masked()
    failed = completed_sample().failed(Outcome.VERIFIER_FAILED, "it raised")
    group = Group(group_id="g", samples=(cut, failed, cut))
    assert (
        describe_failures(Rollouts(groups=(group,), items={}))
        == "1 verifier_failed, 2 truncated and masked"
    )
