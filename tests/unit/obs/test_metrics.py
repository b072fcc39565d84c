import math

import pytest

from zerogap.errors import NumericsError
from zerogap.obs import GAP_SOURCES, METRICS, StepMetrics, is_reward_part, metric
from zerogap.types import Outcome

PUBLIC = [
    "reward/mean",
    "eval/reward/mean",
    "gap/total/mean",
    "gap/total/max",
    "engine/tokens_per_s",
    "step/time_s",
    *(f"gap/{s}/{v}/{x}" for s in GAP_SOURCES for v in ("raw", "open") for x in ("mean", "max")),
    *(f"outcome/{kind}" for kind in Outcome),
]


@pytest.mark.parametrize("name", PUBLIC)
def test_names_that_outside_tools_rely_on_are_declared(name):
    assert metric(name).name == name


def test_parts_of_a_reward_need_no_declaration_but_other_names_do():
    assert metric("reward/format/mean").reducer == "mean"
    assert metric("reward/mine/tags/mean").reducer == "mean"
    assert is_reward_part("reward/format/mean")
    assert not any(map(is_reward_part, METRICS))
    with pytest.raises(KeyError, match="not declared"):
        metric("reward/men")
    with pytest.raises(KeyError, match="not declared"):
        StepMetrics().add("outcome/unheard_of", 1)


def test_names_have_three_parts_at_most_and_a_description():
    for declared in METRICS.values():
        assert 2 <= len(declared.name.split("/")) <= 4
        assert declared.description


def test_a_mean_is_weighted_by_what_it_is_a_mean_of():
    metrics = StepMetrics()
    metrics.add("gap/total/mean", 0.0, weight=3)
    metrics.add("gap/total/mean", 4.0, weight=1)
    metrics.add("gap/total/mean", math.nan, weight=0)
    assert metrics.reduce() == {"gap/total/mean": 1.0}


def test_each_reducer():
    metrics = StepMetrics()
    for value in (2, 5, 3):
        metrics.add_all(
            {
                "outcome/completed": value,
                "gap/total/max": value,
                "reward/min": value,
                "train/learning_rate": value,
            }
        )
    assert metrics.reduce() == {
        "outcome/completed": 10,
        "gap/total/max": 5,
        "reward/min": 2,
        "train/learning_rate": 3,
    }


def test_a_metric_without_a_value_is_absent():
    assert StepMetrics().reduce() == {}


def test_nan_is_refused_by_name():
    with pytest.raises(NumericsError, match="train/grad_norm = nan"):
        StepMetrics().add("train/grad_norm", math.nan)


def test_the_order_is_the_declared_one():
    metrics = StepMetrics()
    for name in ("step/time_s", "reward/a/mean", "reward/mean"):
        metrics.add(name, 1.0)
    assert list(metrics.reduce()) == ["reward/mean", "step/time_s", "reward/a/mean"]
