import json

import pytest
from helpers.recipes import run_config, run_tree

from zerogap.config import RunConfig
from zerogap.config.load import config_from_toml, config_to_toml, load_config
from zerogap.errors import ConfigError

BASE = """
[run]
steps = 5
[model]
path = "m"
[data]
kind = "builtin"
name = "multiplication"
params = { digits = 1 }
[reward]
kind = "regex"
pattern = '(\\d+)'
[rollout.sampling]
stop = ["a", "b"]
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "base.toml"
    path.write_text(BASE)
    return path


def _refusal(recipe, *overrides):
    with pytest.raises(ConfigError) as error:
        load_config([recipe], overrides)
    return str(error.value)


def test_later_files_are_merged_over_earlier_ones(recipe, tmp_path):
    second = tmp_path / "second.toml"
    second.write_text('[run]\nseed = 3\n[rollout.sampling]\nstop = ["c"]\n')
    config = load_config([recipe, second]).config
    assert (config.run.steps, config.run.seed) == (5, 3)
    assert config.rollout.sampling.stop == ("c",)


def test_flags_are_stronger_than_files_and_typed_like_toml(recipe):
    config = load_config(
        [recipe],
        [
            "--run.steps=7",
            "--train.betas",
            "[0.8, 0.9]",
            "--model.path",
            "some/folder",
            "--engine.prefix_cache",
            "false",
            "--numerics",
            "fast",
            "--prompt.system",
            "1 + 1 = ?\nx = 2",
        ],
    ).config
    assert config.run.steps == 7
    assert config.train.betas == (0.8, 0.9)
    assert config.model.path == "some/folder"
    assert config.engine.prefix_cache is False
    assert config.numerics == "fast"
    assert config.prompt.system == "1 + 1 = ?\nx = 2"


def test_a_new_kind_starts_its_table_afresh_whatever_the_order_of_flags(recipe):
    overrides = ["--data.path", "x.jsonl", "--data.kind", "jsonl", "--data.answer_field", "a"]
    resolved = load_config([recipe], overrides)
    assert resolved.config.data.path == "x.jsonl"
    assert "data.name" not in resolved.sources


def test_the_run_folder_is_named_after_the_first_recipe(recipe):
    assert load_config([recipe]).config.run.dir == "runs/base"
    assert load_config([recipe], ["--run.dir", "elsewhere"]).config.run.dir == "elsewhere"


def test_sources_say_who_gave_each_value(recipe):
    sources = load_config([recipe], ["--run.steps", "9"]).sources
    assert sources["run.steps"] == "--run.steps"
    assert sources["model.path"] == str(recipe)
    assert sources["run.dir"] == "the recipe's name"
    assert "run.seed" not in sources


def test_all_problems_are_listed_together(recipe):
    text = _refusal(recipe, "--run.steps", "0", "--train.learning_rat", "1", "--data.name", "3")
    assert "3 problems" in text
    assert "run.steps = 0 (from --run.steps): it must be greater than or equal to 1" in text
    assert (
        "train.learning_rat (from --train.learning_rat): unknown key; did you mean train.learning_rate?"
        in text
    )
    assert "data.name = 3 (from --data.name): it must be a valid string; write it in quotes" in text


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--sampling.temperature=1", "did you mean rollout.sampling or evaluate.sampling?"),
        ("--temperature=1", "did you mean rollout.sampling.temperature or"),
        ("--train.lr=1", "the keys of train are learning_rate, schedule"),
        ("--data.path=x", "belongs to another data.kind"),
        ("--data.kind=csv", 'set one of "jsonl", "parquet", "reasoning_gym", "builtin"'),
        ("--reward.kind=exac", "reward.kind = 'exac' (from --reward.kind): unknown kind"),
        ("--reward.kind=weighted_sum", "reward.parts is missing and has no default"),
        ("--reward.weight=1", "did you mean reward.parts.NAME.weight"),
        ("--train=3", "train = 3 (from --train): this is a table, not a value"),
        (
            "--rollout.sampling.stop=[1]",
            "rollout.sampling.stop.0 = 1 (from --rollout.sampling.stop)",
        ),
        ("--rollout.group_size=1", "rollout.group_size = 1: advantages compare"),
        ("--rollout.sampling.top_p=2.0", "rollout.sampling.top_p = 2.0 is not allowed"),
        ("--run.dir=", "run.dir = '' (from --run.dir)"),
        ("steps=3", "'steps=3': neither a recipe file nor a flag"),
        ("--run..steps=3", "nor a flag; write --section.key value"),
        ("--run.steps", "--run.steps has no value"),
    ],
)
def test_a_wrong_key_or_value_names_what_to_write(recipe, flag, message):
    assert message in _refusal(recipe, flag)


def test_a_missing_section_is_named(tmp_path):
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    text = _refusal(empty)
    for key in ("run.steps", "model", "data", "reward"):
        assert f"{key} is missing" in text


def test_a_file_that_cannot_be_read_is_named(recipe, tmp_path):
    assert "has base.toml" in _refusal(tmp_path / "bas.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run]\nsteps = five")
    assert "not TOML" in _refusal(broken)
    assert "line 2" in _refusal(broken)
    assert "cannot be read" in _refusal(tmp_path)


def test_a_flag_cannot_be_both_value_and_table(recipe):
    assert "keep one of the two" in _refusal(recipe, "--train=1", "--train.eps=1")


def test_toml_and_json_round_trips(recipe):
    config = load_config([recipe]).config
    assert config_from_toml(config_to_toml(config)) == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert (
        RunConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json")))) == config
    )


def test_toml_shows_defaults_and_leaves_out_what_is_none():
    text = config_to_toml(run_config())
    assert "clip_low = 0.2" in text
    assert "dual_clip" not in text
    assert config_from_toml(text) == RunConfig.model_validate(run_tree())
