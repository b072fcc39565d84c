"""Every recipe in the repository loads, and --dry-run prints an equal recipe."""

import tomllib
from pathlib import Path

import pytest

from zerogap.algorithms import LOSSES as KINDS
from zerogap.algorithms import presets
from zerogap.cli import main
from zerogap.config.load import config_from_toml, load_config

FOLDER = Path(__file__).parents[3] / "recipes"
LOSSES = {path.stem: path for path in sorted((FOLDER / "losses").glob("*.toml"))}
COMPOSITIONS = sorted((FOLDER / "compositions").glob("*.toml"))
OVERLAYS = [FOLDER / "mismatched.toml", *LOSSES.values(), *COMPOSITIONS]
"""Laid over another recipe."""
RECIPES = [
    *([path] for path in sorted(FOLDER.glob("*.toml")) if path not in OVERLAYS),
    *([FOLDER / "tiny.toml", path] for path in OVERLAYS),
]


def name_of(recipe: list[Path]) -> str:
    return "+".join(path.stem for path in recipe)


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_a_recipe_passes_dry_run(recipe, capsys):
    assert main(["train", *map(str, recipe), "--dry-run"]) == 0
    printed = config_from_toml(capsys.readouterr().out)
    assert printed == load_config(recipe).config


def test_there_are_recipes():
    assert {"quickstart", "tiny"} <= {name_of(recipe) for recipe in RECIPES}


def test_every_loss_has_a_recipe_that_is_about_it():
    # The presets, and the losses on answers, which have no other tables to preset.
    assert set(presets()) | {"sft", "dpo"} == set(LOSSES)
    of_presets = {tables["loss"]["kind"] for tables in presets().values()}
    assert of_presets | {"import", "sft", "dpo"} == set(KINDS)
    for name, path in LOSSES.items():
        found = load_config([FOLDER / "tiny.toml", path])
        assert tomllib.loads(path.read_text())["loss"]["kind"] == name
        assert (
            found.config.loss.kind == presets().get(name, {"loss": {"kind": name}})["loss"]["kind"]
        )
        assert found.config.run.dir == f"runs/losses/{name}"


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_recipe_can_be_tried_for_three_steps_and_says_how(kind):
    config = load_config([FOLDER / "tiny.toml", LOSSES[kind]], ["--run.steps", "3"]).config
    assert config.train.warmup_steps < 3
    command = f"zerogap train recipes/tiny.toml recipes/losses/{kind}.toml\n"
    assert command in LOSSES[kind].read_text()


@pytest.mark.parametrize("path", COMPOSITIONS, ids=lambda path: path.stem)
def test_a_composition_says_how_it_is_run(path):
    assert load_config([FOLDER / "tiny.toml", path]).config.run.dir == f"runs/compositions/{path.stem}"  # fmt: skip
    assert f"zerogap train recipes/tiny.toml recipes/compositions/{path.name}\n" in path.read_text()
