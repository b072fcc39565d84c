"""``loss.kind`` may name a preset: a published algorithm, expanded to the tables that make it."""

import pytest

from zerogap.algorithms import LOSSES, Algorithm, presets
from zerogap.cli import main
from zerogap.config.load import config_from_toml, config_to_toml, load_config
from zerogap.errors import ConfigError

REQUIRED = {
    "dr_grpo": ("--loss.constant_denominator", "8"),
    "distillation": ("--teacher.path", "some/teacher"),
}
"""Flags of the keys that a preset cannot know."""
RECIPE = """
[run]
steps = 20
[model]
path = "some/model"
[data]
kind = "builtin"
name = "multiplication"
[reward]
kind = "last_number"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return str(path)


def flags(name: str, *others: str) -> tuple[str, ...]:
    return ("--loss.kind", name, *REQUIRED.get(name, ()), *others)


def leaves(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def value_of(config, key):
    for name in key.split("."):
        config = getattr(config, name)
    return config


def test_there_are_the_published_algorithms():
    expected = {"grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo", "maxrl"}
    assert expected | {"sapo", "dppo", "drpo", "otb", "lite_ppo", "scalerl", "distillation"} <= set(presets())  # fmt: skip


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_a_valid_recipe_with_all_of_its_values(name, recipe):
    config = load_config([recipe], flags(name)).config
    for key, value in leaves(presets()[name]):
        assert value_of(config, key) == value, key
    assert config.loss.kind in LOSSES
    assert Algorithm.preset(name, **required_tables(name)) == config.algorithm


def required_tables(name):
    tables = {}
    if name in REQUIRED:
        flag, value = REQUIRED[name]
        table, key = flag.removeprefix("--").split(".")
        tables[table] = {key: int(value) if value.isdecimal() else value}
    return tables


@pytest.mark.parametrize("name", REQUIRED)
def test_a_key_that_a_preset_cannot_know_must_be_given(name, recipe):
    key = REQUIRED[name][0].removeprefix("--")
    with pytest.raises(ConfigError, match=f"{key.rpartition('.')[2]}"):
        load_config([recipe], ["--loss.kind", name])


@pytest.mark.parametrize("name", presets())
def test_an_expanded_recipe_read_back_is_itself(name, recipe, tmp_path):
    config = load_config([recipe], flags(name)).config
    text = config_to_toml(config)
    assert config_from_toml(text) == config
    printed = tmp_path / "printed.toml"
    printed.write_text(text)
    assert load_config([printed]).config == config


@pytest.mark.parametrize("name", presets())
def test_a_dry_run_says_which_values_a_preset_gave(name, recipe, capsys):
    assert main(["train", recipe, *flags(name), "--dry-run"]) == 0
    lines = capsys.readouterr().out.split("# set by\n")[1].splitlines()
    origins = dict(line.removeprefix("#").split(None, 1) for line in lines)
    for key, _ in leaves(presets()[name]):
        if key != "loss.kind":
            assert origins[key] == f'the preset "{name}"', key
    assert origins["loss.kind"] == f'--loss.kind (from the preset "{name}")'
    assert "loss.clip_low" not in origins or "clip_low" in presets()[name]["loss"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_given_keys_win_over_the_preset_wherever_they_stand(order, recipe, tmp_path):
    own = ("--loss.clip_high", "0.5", "--advantage.std", "none")
    named = ("--loss.kind", "dapo")
    found = load_config([recipe], (*own, *named) if order == "before" else (*named, *own))
    config = found.config
    assert (config.loss.clip_high, config.advantage.std) == (0.5, "none")
    assert config.sampling_policy.dynamic_sampling.max_rounds == 4
    assert found.sources["loss.clip_high"] == "--loss.clip_high"
    # A file's too.
    below = tmp_path / "below.toml"
    below.write_text(RECIPE + "[sampling_policy.dynamic_sampling]\nmax_rounds = 7\n")
    config = load_config([below], named).config
    assert config.sampling_policy.dynamic_sampling.max_rounds == 7


def test_another_kind_of_advantage_replaces_the_table_of_the_preset(recipe):
    config = load_config([recipe], flags("gspo", "--advantage.kind", "leave_one_out")).config
    assert (config.advantage.kind, config.advantage.std) == ("leave_one_out", "none")
    assert (config.loss.ratio, config.loss.clip_low) == ("geometric", 3e-4)


def test_a_recipe_without_a_loss_is_grpo(recipe):
    assert load_config([recipe]).config == load_config([recipe], flags("grpo")).config
    assert load_config([recipe], ["--advantage.std", "none"]).config.advantage.std == "none"


def test_an_own_combination_starts_from_the_kinds_defaults(recipe):
    config = load_config([recipe], flags("reinforce", "--advantage.std", "batch")).config
    assert (config.loss.kind, config.advantage.kind, config.advantage.std) == ("reinforce", "group", "batch")  # fmt: skip


def test_an_unknown_kind_lists_kinds_and_presets(recipe):
    with pytest.raises(ConfigError) as error:
        load_config([recipe], ["--loss.kind", "grop"])
    message = str(error.value)
    assert "loss.kind = 'grop' (from --loss.kind): unknown kind; set one of" in message
    kinds, _, named = message.partition(", or a preset: ")
    assert all(f'"{kind}"' in kinds for kind in LOSSES)
    assert all(f'"{name}"' in named for name in presets())
    with pytest.raises(ConfigError) as error:
        load_config([recipe], ["--advantage.kind", "grop"])
    assert "preset" not in str(error.value)
