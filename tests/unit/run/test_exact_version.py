"""Whose log-probs the trainer may take over, and what a run says when they were not what it promised."""

import io

import pytest
from helpers.recipes import run_config
from rich.console import Console

from zerogap.run.train import TrainingRun
from zerogap.train import OldLogProbAudit
from zerogap.types import SamplingParams


def training_run(**config) -> tuple[TrainingRun, io.StringIO]:
    out = io.StringIO()
    return TrainingRun(run_config(**config), Console(file=out, soft_wrap=True), is_quiet=True), out


@pytest.mark.parametrize(("numerics", "expected"), [("exact", 4), ("fast", None)])
def test_only_exact_numerics_promise_the_trainers_log_probs(numerics, expected):
    run, _ = training_run(numerics=numerics)
    run.step_number = 4
    assert run._exact_version() == expected


def test_log_probs_of_edited_logits_are_not_the_trainers(monkeypatch):
    run, _ = training_run(numerics="exact")
    monkeypatch.setattr(
        type(run.config.rollout.sampling), "params", lambda _: SamplingParams(presence_penalty=0.1)
    )
    assert run._exact_version() is None


def test_a_difference_is_a_warning_even_when_the_run_is_quiet():
    run, out = training_run(numerics="exact")
    run._warn_of_audit(OldLogProbAudit(num_taken=10, num_audited=5))
    assert out.getvalue() == ""
    run._warn_of_audit(
        OldLogProbAudit(num_audited=5, num_different=2, first_difference="rollout g/1, position 3: -1 and -2")
    )  # fmt: skip
    assert "warning: step 1: 2 of 5" in out.getvalue()
    assert "rollout g/1, position 3" in out.getvalue()
