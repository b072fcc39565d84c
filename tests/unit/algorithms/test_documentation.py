"""docs/algorithms.md has a row for every kind that a recipe can name, and its worked figures are right."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from zerogap.config.corrections import CorrectionsConfig, Level, WeightCorrection
from zerogap.config.loss import LossConfig

import zerogap.algorithms
from zerogap.algorithms import Denominator, correct_mismatch, loss_denominators

TEXT = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
KINDS = [
    get_args(section.model_fields["kind"].annotation)[0]
    for section in get_args(get_args(LossConfig)[0])
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_has_a_formula_and_a_price(kind):
    assert TEXT.count(f"\n| `{kind}`") >= 2


@pytest.mark.parametrize(
    "name", [*CorrectionsConfig.model_fields, *get_args(Denominator), *get_args(Level)]
)
def test_every_correction_denominator_and_level_has_a_row(name):
    assert f"\n| `{name}`" in TEXT


def test_functions_it_names_exist():
    rows = [line.split("`")[1] for line in TEXT.split("## Advantages")[1].split("##")[0].splitlines() if line.startswith("| `")]  # fmt: skip
    assert set(rows) <= set(zerogap.algorithms.__all__)
    assert len(rows) == 9


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
