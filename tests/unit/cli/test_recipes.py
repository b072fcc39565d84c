"""Every recipe in the repository loads, and stays itself through --dry-run."""

from pathlib import Path

import pytest

from zerogap.cli import main
from zerogap.config.load import config_from_toml, load_config

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_passes_dry_run(recipe, capsys):
    assert main(["train", str(recipe), "--dry-run"]) == 0
    printed = config_from_toml(capsys.readouterr().out)
    assert printed == load_config([recipe]).config


def test_there_are_recipes():
    assert {"quickstart", "tiny"} <= {path.stem for path in RECIPES}
