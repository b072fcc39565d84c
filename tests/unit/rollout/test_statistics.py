import numpy as np
from helpers.samples import completed_sample, make_output

from zerogap.obs.metrics import StepMetrics
from zerogap.rollout import add_rollout_metrics
from zerogap.types import FinishReason, Outcome, Sample, Source


def reduced(samples):
    metrics = StepMetrics()
    add_rollout_metrics(metrics, samples)
    return metrics.reduce()


def test_failed_samples_count_under_their_outcome_and_in_no_reward():
    long = make_output(output_ids=(1, 2, 3, 4), finish_reason=FinishReason("length"))
    samples = [
        completed_sample().scored(1.0, {"format": 0.5}),
        Sample.from_output(long, group_id="g", temperature=1.0).scored(0.0),
        completed_sample().failed(Outcome.VERIFIER_FAILED, "timeout"),
    ]
    found = reduced(samples)
    assert (found["reward/mean"], found["reward/std"]) == (0.5, 0.5)
    assert (found["reward/min"], found["reward/max"]) == (0, 1)
    assert found["reward/format/mean"] == 0.5
    assert found["outcome/verifier_failed"] == 1
    assert found["outcome/tampered"] == 0
    assert found["rollout/num_samples"] == 3
    assert found["rollout/completion_len/max"] == 4
    np.testing.assert_array_almost_equal_nulp(found["rollout/completion_len/mean"], 8 / 3, 1)
    np.testing.assert_array_almost_equal_nulp(found["rollout/truncated_fraction"], 1 / 3, 1)


def test_the_environment_adds_nothing_to_the_length_of_a_completion():
    asked = completed_sample().append([7] * 100, source=Source.ENVIRONMENT)
    sample = asked.append_output(make_output(prompt_ids=asked.token_ids, output_ids=(1, 2, 3)))
    assert reduced([sample])["rollout/completion_len/mean"] == 5
    assert reduced([sample])["rollout/prompt_len/mean"] == 2


def test_without_a_reward_there_is_no_mean():
    found = reduced([completed_sample().failed(Outcome.VERIFIER_FAILED, "timeout")])
    assert not [name for name in found if name.startswith("reward/")]


def test_which_answer_is_preferred_is_no_reward():
    pair = {"group_id": "g", "rollout_id": "g/chosen"}
    found = reduced([Sample.demonstration((1,), (2, 3), **pair, reward=1.0)])
    assert not [name for name in found if name.startswith("reward/")]
    assert found["rollout/completion_len/mean"] == 2
