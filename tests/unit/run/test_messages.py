"""The warnings of a run."""

from zerogap.run.messages import warning_of_audit, warning_of_truncation
from zerogap.train import OldLogProbAudit
from zerogap.types import SamplingParams


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
