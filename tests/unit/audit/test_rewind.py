from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.recorded_run import change_column, copy_without, make_run
from helpers.train_batches import train_on
from rich.console import Console

from zerogap.algorithms import CorrectionsConfig, WeightCorrection
from zerogap.audit import RecordedRun, rewind
from zerogap.errors import CheckpointError
from zerogap.obs import JsonlFile, Progress
from zerogap.run.policy import load_policy
from zerogap.run.versions import StepSettings, version_line
from zerogap.weights import weight_fingerprint

QUIET = Progress(Console(), is_quiet=True)


CHECKPOINTS = "checkpoints"


@pytest.mark.parametrize("version", [1, 3])
def test_without_any_checkpoint_a_version_comes_from_the_initial_model_and_the_rollouts(
    recorded: Path, fingerprints: dict[int, str], tmp_path: Path, version: int
):
    run = RecordedRun(copy_without(recorded, tmp_path / "run", CHECKPOINTS))
    found = rewind(run, version, progress=QUIET)
    assert weight_fingerprint(found.policy.model) == fingerprints[version]
    steps = {1: "step 1", 3: "steps 1 to 3"}[version]
    assert found.origin == f"the recipe's initial model, retrained on the rollouts of {steps}"


def test_version_0_is_the_recipes_own(recorded: Path):
    run = RecordedRun(recorded)
    found = rewind(run, 0, progress=QUIET)
    initial = load_policy(run.config.model, seed=run.config.run.seed).model
    assert weight_fingerprint(found.policy.model) == weight_fingerprint(initial)
    assert (found.origin, found.is_proven) == ("the recipe's initial model", 0 in run.versions)


def test_a_later_checkpoint_is_of_no_use_and_an_earlier_one_is(
    recorded: Path, fingerprints: dict[int, str], tmp_path: Path
):
    removed = [f"{CHECKPOINTS}/step_00000{n}" for n in (2, 3)]
    run = RecordedRun(copy_without(recorded, tmp_path / "run", *removed))
    found = rewind(run, 3, progress=QUIET)
    assert weight_fingerprint(found.policy.model) == fingerprints[3]
    assert found.origin == "the checkpoint of step 1, retrained on the rollouts of steps 2 to 3"


def test_the_trainer_goes_on_as_the_run_did(
    recorded: Path, fingerprints: dict[int, str], tmp_path: Path
):
    run = RecordedRun(copy_without(recorded, tmp_path / "run", CHECKPOINTS))
    found = rewind(run, 3, progress=QUIET)
    train_on(found.trainer, run.samples(4), exact_version=3)
    assert weight_fingerprint(found.policy.model) == fingerprints[4]


def test_older_versions_that_are_asked_for_are_kept(recorded: Path, fingerprints: dict[int, str]):
    run = RecordedRun(recorded)
    found = rewind(run, 3, older=frozenset({1, 2}), progress=QUIET)
    assert found.history is not None
    assert found.history.versions == (1, 2)
    assert found.origin.startswith("the checkpoint of step 1,")
    found.history.load_into(2, found.policy.model)
    assert weight_fingerprint(found.policy.model) == fingerprints[2]


def test_older_versions_that_cannot_be_had_are_left_out(recorded: Path, tmp_path: Path):
    removed = [f"{CHECKPOINTS}/step_000001", "rollouts/step_000001"]
    run = RecordedRun(copy_without(recorded, tmp_path / "run", *removed))
    found = rewind(run, 3, older=frozenset({1, 2}), progress=QUIET)
    assert found.history is not None
    assert found.history.versions == (2,)


def test_missing_rollouts_are_an_error_that_says_which_and_what_can_be_audited(
    recorded: Path, tmp_path: Path
):
    removed = [CHECKPOINTS, "rollouts/step_000002"]
    run = RecordedRun(copy_without(recorded, tmp_path / "run", *removed))
    with pytest.raises(CheckpointError, match="missing for steps 2 ") as error:
        run.choose_step(4)
    assert "nearest stored version is 0 (the recipe's initial model)" in str(error.value)
    assert "can be audited: 1." in str(error.value)
    with pytest.raises(CheckpointError, match=r"step 2 .* can be audited: 1$"):
        run.choose_step(2)
    with pytest.raises(CheckpointError, match=r"rollouts of steps \[2\] are not on disk"):
        rewind(run, 3, progress=QUIET)


def test_the_last_recorded_step_is_the_default(recorded: Path):
    assert RecordedRun(recorded).choose_step(None) == 4


def test_a_folder_without_rollouts_says_how_to_get_some(recorded: Path, tmp_path: Path):
    run = RecordedRun(copy_without(recorded, tmp_path / "run", "rollouts"))
    with pytest.raises(CheckpointError, match=r"obs\.rollouts_every = 1"):
        run.choose_step(None)


def test_a_folder_of_something_else_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        RecordedRun(tmp_path)


def keep_fingerprints(folder: Path, fingerprints: dict[int, str]) -> RecordedRun:
    (folder / "versions.jsonl").unlink(missing_ok=True)
    with JsonlFile(folder / "versions.jsonl") as file:
        for version, fingerprint in fingerprints.items():
            file.write(version_line(version, fingerprint))
    return RecordedRun(folder)


def test_recorded_fingerprints_prove_the_weights(
    recorded: Path, fingerprints: dict[int, str], tmp_path: Path
):
    folder = copy_without(recorded, tmp_path / "run", CHECKPOINTS)
    run = keep_fingerprints(folder, fingerprints)
    assert rewind(run, 2, progress=QUIET).is_proven


def add_one_to_the_last(token_ids: np.ndarray) -> None:
    token_ids[-1] ^= 1


def test_rollouts_that_were_changed_give_other_weights_and_that_is_noticed(
    recorded: Path, fingerprints: dict[int, str], tmp_path: Path
):
    folder = copy_without(recorded, tmp_path / "run", CHECKPOINTS)
    change_column(folder, 1, "token_ids", add_one_to_the_last)
    run = keep_fingerprints(folder, fingerprints)
    with pytest.raises(CheckpointError, match="retraining step 1 gave different weights"):
        rewind(run, 2, progress=QUIET)


AS_RECIPE = StepSettings(gemm="exact", is_exact=True, corrections=CorrectionsConfig())
BLAS = replace(AS_RECIPE, gemm="blas")
WEIGHED = replace(AS_RECIPE, corrections=CorrectionsConfig(weight=WeightCorrection()))


def make_the_first_unlikely(log_probs: np.ndarray) -> None:
    log_probs[:11] -= 5  # of the first rollout; only importance weights use it


@pytest.mark.parametrize("settings", [AS_RECIPE, BLAS, WEIGHED], ids=["recipe", "gemm", "corrections"])  # fmt: skip
def test_a_step_trains_again_as_it_was_recorded_to(
    recorded: Path, fingerprints: dict[int, str], tmp_path: Path, settings: StepSettings
):
    folder = copy_without(recorded, tmp_path / "run", CHECKPOINTS)
    (folder / "versions.jsonl").unlink(missing_ok=True)
    change_column(folder, 1, "rollout_log_probs", make_the_first_unlikely)
    with JsonlFile(folder / "versions.jsonl") as file:
        file.write(version_line(1, fingerprints[1], settings))
    if settings == AS_RECIPE:
        assert rewind(RecordedRun(folder), 1, progress=QUIET).is_proven
        return
    # The run did not train like this: the claimed settings give other weights.
    with pytest.raises(CheckpointError, match="retraining step 1 gave different weights"):
        rewind(RecordedRun(folder), 1, progress=QUIET)


def test_another_initial_model_is_noticed(
    recorded: Path, fingerprints: dict[int, str], tmp_path: Path
):
    folder = copy_without(recorded, tmp_path / "run", CHECKPOINTS)
    run = keep_fingerprints(folder, {0: "another", **fingerprints})
    with pytest.raises(CheckpointError, match="not the one that the run started from"):
        rewind(run, 1, progress=QUIET)


def test_steps_with_masked_samples_are_recomputed(tmp_path: Path):
    made = make_run(
        tmp_path / "run",
        steps=3,
        sampling_policy__truncated="mask",
        sampling_policy__overlong__buffer_tokens="8",
        sampling_policy__dynamic_sampling__over_sampling="2.0",
        rollout__sampling__max_new_tokens="60",
        train__updates_per_step="3",
        loss__kind="dapo",
    )
    run = RecordedRun(copy_without(made, tmp_path / "copy", CHECKPOINTS, "not_trained"))
    assert all(run.metrics(step)["excluded/masked"] > 0 for step in (1, 2, 3))
    found = rewind(run, 3, progress=QUIET)
    assert found.is_proven
    assert weight_fingerprint(found.policy.model) == run.versions[3].fingerprint


def test_steps_without_a_signal_are_recomputed(tmp_path: Path):
    # Random weights give no exact answer, so all rewards are 0.
    made = make_run(tmp_path / "run", steps=2, reward__kind="exact")
    run = RecordedRun(copy_without(made, tmp_path / "copy", CHECKPOINTS))
    assert [run.metrics(step)["train/num_updates_without_signal"] for step in (1, 2)] == [1, 1]
    found = rewind(run, 2, progress=QUIET)
    assert found.is_proven
    versions = [weight_fingerprint(found.policy.model), *(run.versions[v].fingerprint for v in range(3))]  # fmt: skip
    assert len(set(versions)) == 1
