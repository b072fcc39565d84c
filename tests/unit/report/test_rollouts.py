import numpy as np
import pytest
from helpers.run_folder import keep_rollouts, kept_sample
from safetensors.numpy import save_file

from zerogap.report.rollouts import NUM_RANKED, KeptRollout, rank, read_newest
from zerogap.types import Outcome


def rollout(reward, *, group_id="g0", index=0, step=1, outcome=Outcome.COMPLETED):
    sample = kept_sample([5], reward=reward, group_id=group_id, index=index, outcome=outcome)
    return KeptRollout(step, sample, sample.rollout_log_probs, {})


def rewards(rollouts):
    return [one.sample.reward for one in rollouts]


def test_best_and_worst_are_ranked_by_reward():
    ranked = rank([rollout(r / 20) for r in np.random.default_rng(0).permutation(20)])
    assert rewards(ranked.best) == [0.95, 0.9, 0.85, 0.8, 0.75]
    assert rewards(ranked.worst) == [0.0, 0.05, 0.1, 0.15, 0.2]


@pytest.mark.parametrize(("count", "shown"), [(0, (0, 0)), (1, (1, 0)), (3, (2, 1)), (7, (4, 3))])
def test_no_rollout_is_both_among_the_best_and_the_worst(count, shown):
    ranked = rank([rollout(0.5, index=i) for i in range(count)])
    assert (len(ranked.best), len(ranked.worst)) == shown
    assert len({id(one) for one in (*ranked.best, *ranked.worst)}) == count


def test_a_failed_rollout_is_not_ranked_as_the_worst():
    failed = rollout(None, outcome=Outcome.VERIFIER_FAILED)
    ranked = rank([failed, rollout(-1.0), rollout(1.0)])
    assert rewards(ranked.worst) == [-1.0]
    assert ranked.failed == [failed]
    assert ranked.num_scored == 2


def test_equal_rewards_show_one_of_each_prompt_first():
    members = [rollout(1.0, group_id=f"g{g}", index=i) for g in range(3) for i in range(8)]
    groups = [one.sample.group_id for one in rank(members).best]
    assert groups == ["g0", "g1", "g2", "g0", "g1"]


def test_the_newest_step_is_read_and_older_ones_only_when_it_is_too_small(tmp_path):
    enough = [kept_sample([5], index=i) for i in range(2 * NUM_RANKED)]
    keep_rollouts(tmp_path, 1, enough)
    keep_rollouts(tmp_path, 2, enough)
    assert {one.step for one in read_newest(tmp_path / "rollouts", [])} == {2}
    keep_rollouts(tmp_path, 3, enough[:3])
    assert {one.step for one in read_newest(tmp_path / "rollouts", [])} == {2, 3}


def test_each_sample_gets_the_trainers_log_probs_of_its_own_tokens(tmp_path):
    samples = [kept_sample([5] * n, index=n, log_prob=-n) for n in (1, 4, 2)]
    keep_rollouts(tmp_path, 1, samples, gap=0.25)
    for kept in read_newest(tmp_path / "rollouts", []):
        num_completion = len(kept.sample) - 3
        assert np.isnan(kept.gap[:3]).all()
        assert kept.gap[3:].tolist() == [0.25] * num_completion


def test_rollouts_without_the_trainers_log_probs_are_shown_without_gap(tmp_path):
    keep_rollouts(tmp_path, 1, [kept_sample([5, 6])], gap=None)
    notes: list[str] = []
    (kept,) = read_newest(tmp_path / "rollouts", notes)
    assert np.isnan(kept.gap).all()
    assert "step_000001 has no trainer.safetensors" in notes[0]


def test_a_step_that_a_kill_left_unfinished_is_named_and_the_one_before_it_shown(tmp_path):
    keep_rollouts(tmp_path, 1, [kept_sample([5])])
    (tmp_path / "rollouts" / "step_000002").mkdir()
    (tmp_path / "rollouts" / ".step_000003.17").mkdir()
    notes: list[str] = []
    assert [one.step for one in read_newest(tmp_path / "rollouts", notes)] == [1]
    assert "step_000002 is left out" in notes[0]


@pytest.mark.parametrize("size", [0, 3, 9])
def test_trainer_log_probs_of_other_tokens_are_refused(tmp_path, size):
    folder = keep_rollouts(tmp_path, 1, [kept_sample([5])])
    save_file({"old_log_probs": np.zeros(size, np.float32)}, folder / "trainer.safetensors")
    notes: list[str] = []
    assert read_newest(tmp_path / "rollouts", notes) == []
    assert f"shape ({size},) for 4 tokens" in notes[0]


def test_a_torn_trainer_file_is_named(tmp_path):
    folder = keep_rollouts(tmp_path, 1, [kept_sample([5])])
    (folder / "trainer.safetensors").write_bytes(b"\x10")
    notes: list[str] = []
    assert read_newest(tmp_path / "rollouts", notes) == []
    assert "step_000001 is left out" in notes[0]


def test_what_was_noted_about_a_prompt_belongs_to_its_rollouts(tmp_path):
    samples = [kept_sample([5], group_id=group) for group in ("g0", "g1")]
    keep_rollouts(tmp_path, 1, samples, notes={"g1": {"answer": "42"}})
    assert [kept.note for kept in read_newest(tmp_path / "rollouts", [])] == [{}, {"answer": "42"}]


def test_no_rollouts_is_an_empty_ranking(tmp_path):
    assert rank(read_newest(tmp_path / "rollouts", [])).steps == []
