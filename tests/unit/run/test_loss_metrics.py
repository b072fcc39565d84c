from dataclasses import fields

import pytest
from helpers.loss_cases import CASES, gradients_of

from zerogap.algorithms import CorrectionStatistics
from zerogap.obs import StepMetrics
from zerogap.run.step_metrics import add_train_metrics, correction_metrics, loss_metrics

EXPECTED = {
    "grpo, corrected": {"mismatch"},
    "ppo": {"mismatch", "critic"},
    "distillation, sampled": {"mismatch"},
    "distillation, top_k": {"mismatch"},
    "dpo": {"preference"},
    "sft": set(),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_loss_reports_its_own_metrics_and_no_others(name):
    metrics = gradients_of(CASES[name])[1]
    found = loss_metrics(metrics)
    assert {key.split("/")[0] for key in found} - {"policy"} == EXPECTED[name]
    assert ("policy/kl_to_teacher" in found) == name.startswith("distillation")
    # Every name is declared and every value finite.
    collected = StepMetrics()
    add_train_metrics(collected, metrics)
    assert found.items() <= collected.reduce().items()


def test_every_correction_statistic_has_a_metric():
    statistics = gradients_of(CASES["grpo, corrected"])[1].corrections
    names = {field.name for field in fields(CorrectionStatistics)} - {"num_tokens", "num_samples"}
    found = correction_metrics(statistics)
    # Two of them are four numbers each.
    assert len(found) == len(names) + 6
    assert found["mismatch/weight/before/max"] == statistics.weight_before.max
    assert found["mismatch/weight/after/max"] == statistics.weight_after.max
