import json

import pytest
from helpers.recipes import run_config
from helpers.run_folder import step_record, write_run

from zerogap.errors import CheckpointError
from zerogap.report.data import changed_settings, read_run
from zerogap.run_folder import RunFolder


def test_a_line_torn_by_a_kill_is_left_out(tmp_path):
    write_run(tmp_path, [step_record(1), step_record(2)])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    assert read_run(RunFolder(tmp_path)).num_steps == 2


def test_the_evaluation_before_the_first_step_is_no_step(tmp_path):
    write_run(tmp_path, [{"step": 0, "eval/reward/mean": 0.5}, step_record(1)])
    run = read_run(RunFolder(tmp_path))
    assert (run.num_steps, run.points("eval/reward/mean")) == (1, [(0, 0.5)])


def test_a_folder_with_metrics_alone_can_be_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(step_record(1)) + "\n")
    run = read_run(RunFolder(tmp_path))
    assert (run.config, run.environment, run.num_planned_steps) == ({}, {}, None)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        read_run(RunFolder(tmp_path))


def test_a_damaged_config_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        read_run(RunFolder(tmp_path))


def test_only_settings_that_differ_from_their_defaults_are_shown():
    config = run_config(train={"learning_rate": 1e-4}, engine={"max_running": 64})
    changed = changed_settings(config.model_dump(mode="json"))
    assert changed["train.learning_rate"] == 1e-4
    assert "engine.max_running" not in changed  # given, but equal to the default
    assert "loss.clip_low" not in changed
    assert changed["run.steps"] == 20


def test_a_recipe_of_another_version_is_shown_whole():
    config = run_config().model_dump(mode="json")
    config["train"]["retired_key"] = 3
    changed = changed_settings(config)
    assert changed["train.retired_key"] == 3
    assert changed["loss.clip_low"] == 0.2
