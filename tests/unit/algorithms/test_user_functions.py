"""Losses and advantages of the user's own: ``kind = "import"``."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.loss_batches import LossBatch, surrogate_of
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from pydantic import ValidationError

from zerogap.algorithms import (
    AdvantageInputs,
    ImportedAdvantage,
    ImportedLoss,
    ReinforceLoss,
    Surrogate,
    call_user_function,
)
from zerogap.errors import ConfigError, DataError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own(monkeypatch):
    """``own(f)`` makes f importable, and returns its path."""
    module = types.ModuleType("of_the_user")
    monkeypatch.setitem(sys.modules, "of_the_user", module)

    def importable(function):
        module.f = function
        return "of_the_user:f"

    return importable


def plain(terms, strength=1.0):
    return -strength * terms.ratio_T * terms.advantages_T


def inputs():
    return AdvantageInputs(
        rewards_B=np.array([1.0, 2.0]), is_valid_B=np.ones(2, bool), group_ids=["a", "a"],
        loss_mask_S=np.array([True, False, True]), sample_S=np.array([0, 0, 1]),
    )  # fmt: skip


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_an_imported_loss_is_as_good_as_a_built_in_one(own, ratio):
    batch = LossBatch(1)

    def of(loss):
        return batch.loss_and_gradient(lambda c: surrogate_of(loss, c).numerator_T, kind="sample")

    found = of(ImportedLoss(function=own(plain), ratio=ratio))
    EXACT.check(found, of(ReinforceLoss(ratio=ratio)))
    stronger = of(ImportedLoss(function=own(plain), ratio=ratio, params={"strength": 1.01}))
    assert_notices("another parameter", lambda: FLOAT64_SAME_OP.check(stronger, found))


def test_an_imported_loss_may_say_what_it_clipped(own):
    def all_clipped(terms):
        return Surrogate(plain(terms), terms.ratio_T > 0)

    columns = LossBatch(1).tensors()
    assert surrogate_of(ImportedLoss(function=own(all_clipped)), columns).is_clipped_T.all()
    assert not surrogate_of(ImportedLoss(function=own(plain)), columns).is_clipped_T.any()


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (lambda t: plain(t).mean(), r"of_the_user:f' returned torch.Size\(\[\]\) as numerator_T.*do not sum or average"),
        (lambda t: plain(t)[:1], r"returned torch.Size\(\[1\]\) as numerator_T"),
        (lambda t: plain(t)[:, None], "must return one number for each of the"),
        (lambda t: None, "returned NoneType as numerator_T"),
        (lambda t: (plain(t), plain(t), plain(t)), "returned tuple as numerator_T"),
        (lambda t: Surrogate(plain(t), torch.zeros(1, dtype=torch.bool)), "as is_clipped_T"),
        (lambda t: plain(t).detach(), "without a gradient.*without detach"),
        (lambda t: plain(t).detach().numpy(), "without a gradient.*with torch"),
    ],
)  # fmt: skip
def test_a_loss_that_cannot_train_is_refused_with_what_to_do(own, returned, why):
    with pytest.raises(DataError, match=why):
        surrogate_of(ImportedLoss(function=own(returned)), LossBatch(1).tensors())


def test_an_imported_advantage_is_of_samples_or_of_tokens(own):
    def of_samples(inputs, scale):
        return scale * inputs.rewards_B

    config = ImportedAdvantage(function=own(of_samples), params={"scale": 2.0})
    EXACT.check(config.decide(inputs()).column_S, np.array([2.0, np.nan, 4.0]))
    config = ImportedAdvantage(function=own(lambda inputs: [1.0, 5.0, 3.0]))
    EXACT.check(config.decide(inputs()).column_S, np.array([1.0, np.nan, 3.0]))


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (1.0, r"returned shape \[\]: it must return one number for each of 2 samples or 3 tokens"),
        (np.zeros(4), r"returned shape \[4\]"),
        (np.zeros((2, 1)), r"returned shape \[2, 1\]"),
        (None, r"returned shape \[\]"),
        ({"a": 1.0}, "returned a dict that is no array of numbers.*return a numpy array"),
        ([[1.0], [1.0, 2.0]], "returned a list that is no array of numbers"),
        (torch.zeros(3, requires_grad=True), "returned a Tensor that is no array of numbers"),
    ],
)
def test_an_advantage_of_another_shape_is_refused_with_what_to_do(own, returned, why):
    with pytest.raises(DataError, match=why):
        ImportedAdvantage(function=own(lambda inputs: returned)).decide(inputs())


@pytest.mark.parametrize("path", ["no_such_module_here:f", "math:no_such_function"])
def test_a_function_that_does_not_exist_is_refused_with_what_to_do(path):
    with pytest.raises(ConfigError, match=r"cannot be imported.*module in the working directory"):
        call_user_function(path)


def test_what_is_no_function_is_refused():
    with pytest.raises(ConfigError, match="'math:pi' is a float, not a function"):
        call_user_function("math:pi")


@pytest.mark.parametrize("config", [ImportedLoss, ImportedAdvantage])
@pytest.mark.parametrize("path", ["f", "module.f", "module:", "a b:f", "module:f.g"])
def test_a_path_of_another_form_is_refused(config, path):
    with pytest.raises(ValidationError, match="function"):
        config(function=path)


def test_a_module_of_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "module_beside_the_recipe.py").write_text("def f(x, y):\n    return x + y\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert call_user_function("module_beside_the_recipe:f", 1, y=2) == 3
    del sys.modules["module_beside_the_recipe"]


def test_the_users_own_exception_passes_through(own):
    with pytest.raises(ZeroDivisionError):
        call_user_function(own(lambda: 1 / 0))


def test_the_documented_example_is_the_file():
    text = (ROOT / "examples" / "own_algorithm.py").read_text()
    assert text in (ROOT / "docs" / "algorithms.md").read_text()
