"""docs/algorithms.md has a row for every kind that a recipe can name, and its worked figures are right."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from zerogap.algorithms import (
    ADVANTAGES,
    LOSSES,
    CorrectionsConfig,
    Denominator,
    Level,
    WeightCorrection,
    correct_mismatch,
    loss_denominators,
    presets,
)

TEXT = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()


def rows(section):
    """Name -> cells of the rows of a section's tables."""
    lines = TEXT.split(f"\n## {section}")[1].split("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]  # fmt: skip
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize(("section", "kinds"), [("Losses", LOSSES), ("Advantages", ADVANTAGES)])
def test_every_kind_has_a_formula_and_a_use(section, kinds):
    found = rows(section)
    assert found.keys() == kinds.keys()
    for kind, cells in found.items():
        assert cells[0], kind
        assert cells[1] or kind == "import", kind


def test_every_preset_has_a_paper_and_the_kinds_of_its_file():
    found = rows("Presets")
    assert found.keys() == presets().keys()
    for name, (what, paper) in found.items():
        tables = presets()[name]
        assert "https://arxiv.org/abs/" in paper
        if what.startswith("as grpo"):
            assert (tables["loss"]["kind"], tables["advantage"]["kind"]) == ("clip", "group"), name
        else:
            assert f"loss `{tables['loss']['kind']}`" in what, name
            assert f"advantage `{tables['advantage']['kind']}`" in what, name


@pytest.mark.parametrize(
    "name", [*CorrectionsConfig.model_fields, *get_args(Denominator), *get_args(Level)]
)
def test_every_correction_denominator_and_level_has_a_row(name):
    assert f"\n| `{name}`" in TEXT


@pytest.mark.parametrize("level", get_args(Level))
def test_the_example_of_the_levels_is_right(level):
    gaps = np.array([0.1, -0.2, 0.4])
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{level}` |"))
    weights = correct_mismatch(
        gaps, np.zeros(3), np.ones(3, bool), np.zeros(3, int), weight=WeightCorrection(level=level)
    ).weight_S
    assert ", ".join(f"{w:.2f}" for w in weights) in row


@pytest.mark.parametrize(
    ("kind", "constant", "shares"),
    [("token", None, [8, 8]), ("sample", None, [4, 12]), ("constant", 100, [200, 200])],
)
def test_the_example_of_the_denominators_is_right(kind, constant, shares):
    found = loss_denominators(np.array([2, 6]), kind=kind, constant=constant)
    assert found.tolist() == shares
