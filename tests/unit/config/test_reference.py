"""The reference of keys is the config's own: complete, current, and with a meaning for each."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest

from zerogap.cli import main
from zerogap.config.load import config_from_toml, load_config
from zerogap.config.problems import known_keys
from zerogap.config.reference import explain, key_of, markdown, tables
from zerogap.errors import ConfigError

ROOT = Path(__file__).parents[3]
KEYS = sorted(set(known_keys()))


def test_the_page_in_docs_is_current():
    page = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    assert page == markdown(), "write it again: zerogap explain --markdown > docs/recipe.md"


def test_it_has_every_key_with_a_meaning_and_no_other():
    entries = [entry for table in tables() for entry in table.keys]
    assert {entry.key for entry in entries} == set(KEYS)
    assert all(len(entry.text) > 3 and entry.values and entry.default for entry in entries)
    assert not [entry for entry in entries if "value" in entry.values.split()]
    assert all(table.text for table in tables())


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_explained_alone(key):
    assert {entry.key for entry in explain(key)} == {key}


def test_a_key_says_what_it_takes():
    (temperature,) = explain("rollout.sampling.temperature")
    assert (temperature.values, temperature.default) == ("number", "1.0")
    (seed,) = explain("run.seed")
    assert (seed.values, seed.default) == ("integer, 0 or more", "0")
    (steps,) = explain("run.steps")
    assert steps.default == "required"
    (stop,) = explain("rollout.sampling.stop")
    assert (stop.values, stop.default) == ("list of text", "[]")
    kinds = {kind for entry in explain("loss.kind") for kind in entry.kinds}
    assert {"clip", "cispo", "dpo"} <= kinds
    assert '"grpo"' in explain("loss.kind")[0].values


def test_a_table_gives_its_keys_and_a_named_table_any_name():
    assert {e.key for e in explain("run")} == {k for k in KEYS if k.startswith("run.")}
    (weight,) = {e.text for e in explain("reward.parts.mine.weight")}
    assert weight == key_of("reward.parts.other.weight", "exact").text
    assert key_of("data.params.letters", "builtin") is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rollout.temperature", "did you mean evaluate.sampling.temperature or rollout.sampling.temperature?"),
        ("run.sed", "did you mean run.seed"),
        ("zzz", "`zerogap explain` lists all"),
    ],
)  # fmt: skip
def test_an_unknown_key_says_what_there_is(given, expected):
    with pytest.raises(ConfigError) as error:
        explain(given)
    assert expected in str(error.value)


def test_the_command_prints_within_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for words in ([], ["rollout.sampling.temperature"], ["corrections", "loss.clip_low"]):
        assert main(["explain", *words]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
    assert main(["explain", "run.sed"]) == 2
    assert "run.seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "recipes", [["tiny"], ["quickstart", "losses/sdpo"], ["tiny", "losses/gdpo"]]
)
def test_an_explained_dry_run_is_the_same_recipe(recipes, capsys):
    assert main(["train", *recipes, "--dry-run", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert config_from_toml(shown) == load_config(recipes).config
    lines = shown.splitlines()
    silent = {
        line.split(" = ")[0]
        for before, line in itertools.pairwise(lines)
        if re.match(r"\w+ = ", line) and not before.startswith("#")
    }
    assert silent <= set(tomllib.loads(shown)["data"]["params"]), "only what a user names"


def test_explain_without_dry_run_trains_nothing(capsys):
    assert main(["train", "tiny", "--explain"]) == 2
    assert "needs --dry-run" in capsys.readouterr().err
