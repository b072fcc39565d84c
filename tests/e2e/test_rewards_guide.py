"""Every example of docs/guide/rewards.md does what the page says."""

import doctest
import re
import sys
from pathlib import Path

import pytest
from helpers.commands import zerogap
from helpers.samples import completed_sample
from helpers.tiny_runs import RECIPE, SMALL_MODEL

from zerogap.config import RunConfig
from zerogap.config.load import load_config
from zerogap.config.reward import ImportReward
from zerogap.data import PromptItem, build_prompt_sets
from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout import RewardRequest, RewardResult, run_async
from zerogap.rollout.comparisons import regex_reward
from zerogap.rollout.reward_source import RewardSource
from zerogap.run.rewards import recipe_rewards

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "rewards.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CODE = [text for language, text in BLOCKS if language == "python"]
RECIPES = {text.split("\n", 1)[0][2:]: text for language, text in BLOCKS if language == "toml"}
EASY = {"item_id": "questions-1", "question": "3 * 4?", "answer": "12"}
SMALL = {
    **SMALL_MODEL,
    "data.eval_size": "0",
    "rollout.prompts_per_step": "2",
    "rollout.group_size": "4",
    "evaluate.every": "0",
    "train.warmup_steps": "0",
    "run.steps": "1",
}
FLAGS = [f"--{key}={value}" for key, value in SMALL.items()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page in a folder of their own, which is the working directory."""
    (rows,) = (text for language, text in BLOCKS if language == "json")
    (tmp_path / "questions.jsonl").write_text(rows)
    for name, text in RECIPES.items():
        (tmp_path / name).write_text(text)
    for text in CODE:
        if (named := re.match(r"# (\w+\.py)\n", text)) is not None:
            with (tmp_path / named[1]).open("a") as file:
                file.write(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for path in tmp_path.glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return tmp_path


def config_of(name: str) -> RunConfig:
    return load_config([RECIPE, Path("mine.toml"), Path(name)], FLAGS).config


def requests(*completions: str) -> list[RewardRequest]:
    item = PromptItem(**EASY, metadata={"level": "easy"})
    return [RewardRequest(completion=c, item=item, sample=completed_sample(c)) for c in completions]


def values(results: list) -> list[float | str]:
    return [r.value if isinstance(r, RewardResult) else str(r) for r in results]


def loaded(name: str):
    """The function of a recipe as a worker would load it."""
    config = config_of(name)
    assert isinstance(config.reward, ImportReward)
    columns = tuple({"answer", "level"})
    return RewardSource(
        function=config.reward.function,
        params=config.reward.params,
        columns=columns,
        answer_name="answer",
    ).load()


def test_the_page_has_no_example_that_is_not_tried_here():
    assert sorted(RECIPES) == ["keys.toml", "mine.toml", "several.toml", "tags.toml", "trl.toml", "verl.toml"]  # fmt: skip
    assert [t.split("\n", 1)[0] for t in CODE if not t.startswith("# ")] == [
        ">>> from zerogap.data import PromptItem"
    ]


def test_the_function_can_be_tried_by_hand(folder):
    (session,) = (text for text in CODE if text.startswith(">>>"))
    found = doctest.DocTestParser().get_doctest(session, {}, "rewards.md", None, 0)
    assert doctest.DocTestRunner().run(found).failed == 0


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("mine.toml", [1.0, 0.0, 1.0]),
        ("trl.toml", [1.0, 0.0, 1.0]),
        ("verl.toml", [1.0, 0.0, 1.0]),
    ],
)
def test_a_function_of_the_page_rewards_as_it_says(folder, recipe, expected):
    assert values(loaded(recipe)(requests("12", "17", "It is 12."))) == expected


def test_parts_params_and_group_functions_do_what_the_page_says(folder):
    near, far, text = values(loaded("keys.toml")(requests("12", "17", "x")))
    assert (near, far) == (1.0, 0.5)
    assert str(text).startswith("ValueError: could not convert string to float")
    assert config_of("keys.toml").reward.range == (0, 1)
    source = RewardSource(function="my_rewards:right_and_short")
    (result,) = source.load()(requests("12"))
    assert result == RewardResult(1.0 + 0.1 * 0.99, {"right": 1.0, "short": 0.99})
    shortest = RewardSource(function="my_rewards:shortest").load()
    assert values(shortest(requests("12", "144"))) == [1.0, 0.0]
    (scored,) = loaded("verl.toml")(requests("is 12"))
    assert scored.parts == {"length": 5.0}
    tags = config_of("tags.toml").reward
    item = PromptItem(**EASY)
    assert regex_reward("<answer>12</answer>", item, completed_sample("x"), pattern=tags.pattern) == 1  # fmt: skip


def test_a_field_that_the_questions_do_not_have_is_refused_as_the_page_says(folder):
    (folder / "other.py").write_text("def f(completions, solution, **kwargs):\n    return []\n")
    with pytest.raises(ConfigError, match="nothing is given for solution; there are answer"):
        RewardSource(function="other:f", columns=("answer", "level")).load()


def test_several_rewards_add_up_and_the_sum_has_its_range(folder):
    config = config_of("several.toml")
    rewards = recipe_rewards(config, build_prompt_sets(config.data))
    # One call for the group, so that the shortest is found.
    results = run_async(rewards.reward(requests("12", "it is 13")))
    rewards.close()
    assert values(results) == [1.2, 0.0]
    assert results[0].parts == {"right": 1.0, "short": 1.0}


@pytest.mark.e2e
def test_the_five_minutes_train(folder):
    done = zerogap("train", RECIPE, "mine.toml", *FLAGS, "--run.dir=run")
    assert done.returncode == 0, done.stderr
    (said,) = (text for language, text in BLOCKS if text.startswith("reward: "))
    assert said in done.stdout


def test_failures_that_the_page_lists_are_failures(folder):
    listed = {"none": "None", "text": "'12'", "nan": "float('nan')", "huge": "2e9"}
    code = "".join(f"def {n}(completion, item, sample):\n    return {v}\n" for n, v in listed.items())  # fmt: skip
    (folder / "listed.py").write_text(code)
    for name in listed:
        (result,) = RewardSource(function=f"listed:{name}").load()(requests("12"))
        assert isinstance(result, RewardFailed), name
