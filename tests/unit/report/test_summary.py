import pytest
from helpers.recipes import run_config
from helpers.run_folder import evaluation_record, step_record

from zerogap.report.data import RunData
from zerogap.report.summary import describe_outcome, tiles


def run_data(*records, steps=2):
    config = run_config(run={"dir": "runs/test", "steps": steps}).model_dump(mode="json")
    return RunData("test", config, {}, records)


def outcome(*records, steps=2):
    return " ".join(describe_outcome(run_data(*records, steps=steps)))


def test_the_held_out_reward_is_told_from_first_to_last():
    text = outcome(
        evaluation_record(0, 0.25), step_record(1), step_record(2, eval__reward__mean=0.75)
    )
    assert "Held-out reward rose from 0.250 to 0.750 over 2 steps in 25.0 s." in text


@pytest.mark.parametrize(
    ("last", "words"), [(0.1, "fell from 0.250 to 0.100"), (0.25, "stayed at 0.250")]
)
def test_a_reward_that_did_not_rise_is_not_said_to_rise(last, words):
    text = outcome(
        evaluation_record(0, 0.25), step_record(1), step_record(2, eval__reward__mean=last)
    )
    assert words in text


def test_a_single_evaluation_is_no_change():
    text = outcome(evaluation_record(0, 0.25), step_record(1), step_record(2))
    assert "Held-out reward was 0.250 at step 0 and was measured once" in text
    assert "training reward rose from 0.300 to 0.400" in text


def test_without_evaluation_the_training_reward_is_told_as_such():
    text = outcome(step_record(1), step_record(2))
    assert "Training reward rose from 0.300 to 0.400 over 2 steps" in text
    assert "nothing held out was evaluated" in text


def test_a_gap_of_zero_at_every_step_is_said_with_its_tokens():
    text = outcome(step_record(1), step_record(2))
    assert "each of 640 audited tokens" in text
    assert "the gap was 0.0 at every step" in text


def test_the_smallest_gap_anywhere_is_told_with_its_step():
    text = outcome(step_record(1), step_record(2, gap__total__max=1e-45))
    assert "0.0 at every step" not in text
    assert "was 1.0e-45 nats, at step 2" in text
    assert "exactly 0 at 1 of 2 steps" in text


def test_a_step_that_measured_no_gap_is_not_counted_as_zero():
    text = outcome(step_record(1), step_record(2, gap__total__max=None))
    assert "every step" not in text
    assert "each of the 1 step that measured it" in text


def test_a_stopped_run_says_how_far_it_came():
    assert "2 of 40 steps were recorded" in outcome(step_record(1), step_record(2), steps=40)
    assert "were recorded" not in outcome(step_record(1), step_record(2))


def test_failed_samples_are_told():
    text = outcome(step_record(1, outcome__verifier_failed=3), step_record(2))
    assert "3 of 16 samples failed" in text


def test_a_run_without_steps_says_so():
    assert outcome() == "No step has been recorded yet: the run was stopped, or has just begun."
    assert "before the first step" in outcome(evaluation_record(0, 0.25))


def test_the_gap_tile_is_zero_only_when_every_step_is():
    def gap_tile(*records):
        return next(tile for tile in tiles(run_data(*records)) if tile.label == "Largest gap")

    assert gap_tile(step_record(1), step_record(2)).is_zero
    largest = gap_tile(step_record(1, gap__total__max=3e-8), step_record(2))
    assert (largest.is_zero, largest.value, largest.note) == (
        False,
        "3.0e-08",
        "of 640 tokens, at step 1",
    )


def test_what_was_not_measured_has_no_tile():
    assert [tile.label for tile in tiles(run_data(evaluation_record(0, 0.25)))] == [
        "Held-out reward",
        "Steps",
    ]
