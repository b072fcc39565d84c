"""The settings that remedies change, and why a remedy cannot apply."""

import pytest
from helpers.recipes import run_config

from zerogap.algorithms import WeightCorrection
from zerogap.run.adaptations import Adaptations


def adaptations(**config) -> Adaptations:
    return Adaptations.of_recipe(run_config(**config))


def test_nothing_is_adapted_at_the_start():
    found = adaptations(rollout={"lag": 2}, numerics="fast", corrections={"auto": False})
    assert (found.lag, found.is_exact, found.corrections.weight) == (2, False, None)


def test_importance_weights_are_on_from_the_start_where_samples_may_be_old():
    assert adaptations().corrections.weight is None
    assert adaptations(rollout={"lag": 2}).corrections.weight == WeightCorrection()


def test_corrections_are_added_to_those_of_the_recipe():
    found = adaptations(corrections={"veto": 1e-4}).with_corrections()
    assert found.corrections.weight == WeightCorrection()
    assert found.corrections.veto == 1e-4


def test_each_remedy_moves_one_thing():
    before = adaptations(rollout={"lag": 2}, numerics="fast")
    assert before.with_less_lag() == Adaptations(
        corrections=before.corrections, lag=1, is_exact=False
    )
    assert before.with_exact_numerics() == Adaptations(
        corrections=before.corrections, lag=2, is_exact=True
    )


@pytest.mark.parametrize(
    ("remedy", "config", "why"),
    [
        ("corrections", {"corrections": {"weight": {}}}, "already on"),
        ("corrections", {}, None),
        ("corrections", {"loss": {"kind": "dppo"}}, "count the gap twice"),
        ("corrections", {"loss": {"kind": "drpo"}}, "count the gap twice"),
        ("corrections", {"train": {"old_log_probs": "rollout"}}, "every weight is 1"),
        ("staleness", {}, "lag 0"),
        ("staleness", {"rollout": {"lag": 1}}, None),
        ("numerics", {}, "already exact"),
        ("numerics", {"numerics": "fast"}, None),
        ("numerics", {"numerics": "fast", "engine": {"backend": "transformers"}}, "'transformers'"),
    ],
)
def test_a_remedy_that_cannot_be_taken_says_why(remedy, config, why):
    recipe = run_config(**config)
    found = Adaptations.of_recipe(recipe).why_not(remedy, recipe)
    assert (found is None) if why is None else (why in found)


def test_a_checkpoint_brings_them_back():
    before = adaptations(rollout={"lag": 2}, numerics="fast").with_corrections().with_less_lag()
    assert Adaptations.model_validate_json(before.model_dump_json()) == before
