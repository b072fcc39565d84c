import json

import pytest
from helpers.recipes import run_config

from zerogap.errors import CheckpointError
from zerogap.run.folder import open_run_folder
from zerogap.run_folder import RunFolder


def with_checkpoint(path, config):
    folder = RunFolder(path)
    open_run_folder(folder, config)
    done = folder.checkpoints / "step_000001"
    done.mkdir(parents=True)
    (done / "state.json").write_text("{}")
    return folder


def test_config_and_environment_are_written(tmp_path):
    folder = RunFolder(tmp_path)
    open_run_folder(folder, run_config())
    assert json.loads(folder.config.read_text())["numerics"] == "exact"
    assert json.loads(folder.environment.read_text())["threads"] >= 1


def test_the_same_recipe_may_go_on(tmp_path):
    open_run_folder(with_checkpoint(tmp_path, run_config()), run_config())


def test_more_steps_may_be_asked_for(tmp_path):
    folder = with_checkpoint(
        tmp_path, run_config(run={"dir": "runs/test", "steps": 4} | {"steps": 4})
    )
    open_run_folder(folder, run_config(run={"dir": "runs/test", "steps": 4} | {"steps": 40}))


def test_more_steps_under_a_falling_learning_rate_are_another_recipe(tmp_path):
    folder = with_checkpoint(
        tmp_path,
        run_config(
            run={"dir": "runs/test", "steps": 4} | {"steps": 4}, train={"schedule": "linear"}
        ),
    )
    with pytest.raises(CheckpointError, match=r"run\.steps: 4 then, 40 now"):
        open_run_folder(
            folder,
            run_config(
                run={"dir": "runs/test", "steps": 4} | {"steps": 40}, train={"schedule": "linear"}
            ),
        )


def test_what_changes_gradients_is_refused_with_both_values(tmp_path):
    folder = with_checkpoint(tmp_path, run_config())
    with pytest.raises(CheckpointError, match=r"run\.seed: 0 then, 5 now"):
        open_run_folder(folder, run_config(run={"dir": "runs/test", "steps": 4} | {"seed": 5}))


def test_a_run_that_its_budget_or_an_alarm_ended_goes_on_with_other_limits(tmp_path):
    folder = with_checkpoint(tmp_path, run_config(mismatch={"budget": 0.01}))
    open_run_folder(folder, run_config(mismatch={"budget": 0.1}, watch={"gap": 1.0}))


def test_without_a_checkpoint_the_folder_is_free(tmp_path):
    open_run_folder(RunFolder(tmp_path), run_config())
    open_run_folder(
        RunFolder(tmp_path), run_config(run={"dir": "runs/test", "steps": 4} | {"seed": 5})
    )
