"""[reward] of several parts: what it resolves to, and what is refused with which words."""

import pytest
import tomli_w
from helpers.recipes import run_tree

from zerogap.config import RunConfig, reward_parts, single_rewards
from zerogap.config.load import config_from_toml, config_to_toml, load_config
from zerogap.errors import ConfigError

EXACT = {"kind": "exact"}
OWN = {"kind": "import", "function": "m:f", "takes": "group"}
FILE = {"kind": "jsonl", "path": "x.jsonl", "answer_field": None}


def refusal(parts, **sections):
    tree = run_tree(reward={"kind": "weighted_sum", "parts": parts}, **sections)
    with pytest.raises(ConfigError) as refused:
        config_from_toml(tomli_w.dumps(_without_none(tree)))
    return str(refused.value)


def _without_none(tree):
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def sum_of(**parts):
    return RunConfig.model_validate(
        run_tree(reward={"kind": "weighted_sum", "parts": parts})
    ).reward


def test_each_part_is_a_reward_of_its_kind_with_a_weight_and_a_normalization():
    reward = sum_of(right=EXACT, mine={**OWN, "weight": -0.5, "normalize": "group"})
    found = {name: (p.weight, p.normalize) for name, p in reward_parts(reward).items()}
    assert found == {"right": (1.0, "none"), "mine": (-0.5, "group")}
    assert list(single_rewards(reward)) == ["reward.parts.right", "reward.parts.mine"]
    plain = RunConfig.model_validate(run_tree()).reward
    assert (reward_parts(plain), single_rewards(plain)) == ({}, {"reward": plain})


def test_parts_survive_toml_and_a_flag_changes_one(tmp_path):
    recipe = tmp_path / "recipe.toml"
    reward = {"kind": "weighted_sum", "parts": {"right": EXACT, "mine": OWN}}
    recipe.write_text(tomli_w.dumps(run_tree(reward=reward)))
    config = load_config([recipe], ["--reward.parts.mine.weight", "-2"]).config
    assert config_from_toml(config_to_toml(config)) == config
    assert "[reward.parts.mine]" in config_to_toml(config)
    assert reward_parts(config.reward)["mine"].weight == -2


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": {"kind": "exakt"}}, "reward.parts.a.kind = 'exakt': unknown kind; set one of \"exact\", \"last_number\", \"regex\", \"math_verify\", \"task\", \"import\"\n"),
        ({"a": {"kind": "weighted_sum"}}, "reward.parts.a.kind = 'weighted_sum': unknown kind"),
        ({"a": {"weight": 1.0}}, "reward.parts.a.kind is missing, and reward.parts.a needs a kind"),
        ({"a": {**EXACT, "wieght": 1.0}}, "reward.parts.a.wieght: unknown key; did you mean reward.parts.a.weight?"),
        ({"a": {**EXACT, "normalize": "grp"}}, "reward.parts.a.normalize = 'grp': it must be 'none' or 'group'"),
        ({"a": {"kind": "regex", "pattern": "x"}}, "reward.parts.a.pattern = 'x': it has no group"),
        ({"a": 3}, "reward.parts.a = 3: this is a table"),
        ({"a/b": EXACT}, "reward.parts.a/b: the name becomes part of a metric's name; use letters"),
        ({"a": {**EXACT, "weight": 0.0}}, "reward.parts: every weight is 0 (a), so all rewards are equal"),
        ({"a": {**OWN, "takes": "all"}}, "reward.parts.a.takes = 'all': it must be 'completion' or 'group'"),
        ({}, "reward.parts = {}: a sum of no rewards"),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be_is_refused(parts, message):
    assert message in refusal(parts) + "\n"


@pytest.mark.parametrize(
    ("part", "sections", "message"),
    [
        ({"kind": "task"}, {"data": {**FILE, "answer_field": "a"}}, "reward.parts.a.kind = \"task\": data.kind = 'jsonl' has no score"),
        (EXACT, {"data": FILE}, "reward.parts.a.kind = 'exact': it compares with a reference answer"),
        ({**EXACT, "normalize": "group"}, {"advantage": {"kind": "critic"}}, "reward.parts.a.normalize = \"group\": advantage.kind = 'critic' does not compare"),
    ],
)  # fmt: skip
def test_a_part_that_the_data_or_the_loss_cannot_use_is_refused(part, sections, message):
    assert message in refusal({"a": part}, **sections)


def test_a_part_may_not_have_the_name_of_a_shaping():
    policy = {"overlong": {"buffer_tokens": 8}}
    refused = refusal({"overlong": EXACT}, sampling_policy=policy)
    assert "reward.parts.overlong: sampling_policy.overlong adds a part of this name" in refused


def of_reward(**reward):
    with pytest.raises(ConfigError) as refused:
        config_from_toml(tomli_w.dumps(_without_none(run_tree(reward=reward))))
    return str(refused.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("my/reward.py:score", "not module:function; did you mean my.reward:score? for the function f in the file my/reward.py write my.reward:f"),
        ("./reward.py", "did you mean reward:FUNCTION?"),
        ("reward.score", "reward.function = 'reward.score': not module:function"),
        ("my..reward:score", "not module:function"),
        ("reward:3d", "not module:function"),
    ],
)  # fmt: skip
def test_a_function_that_is_named_as_a_file_is_told_its_module(function, message):
    assert message in of_reward(kind="import", function=function)


@pytest.mark.parametrize("kind", [EXACT, OWN, {"kind": "regex", "pattern": "(x)"}])
def test_every_kind_may_have_a_range_and_a_wrong_one_is_refused(kind):
    found = RunConfig.model_validate(run_tree(reward={**kind, "range": [0, 1]})).reward.range
    assert found == (0.0, 1.0)
    assert "reward.range = [1.0, 0.0]: the first number must be smaller" in of_reward(**kind, range=[1, 0])  # fmt: skip
    refused = refusal({"a": {**kind, "range": [1, 1]}})
    assert "reward.parts.a.range = [1.0, 1.0]: the first number must be smaller" in refused


def test_a_regex_and_a_function_report_all_of_their_problems():
    found = of_reward(kind="regex", pattern="x", range=[1, 0])
    assert "reward.pattern" in found
    assert "reward.range" in found
