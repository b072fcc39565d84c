"""Siblings that have drawn the same tokens are computed once: fewer rows, the same bits."""

import pytest
from helpers.planted_fault import assert_notices
from helpers.tiny_engine import prompt, reported, request, tiny_engine
from helpers.tolerance import EXACT

from zerogap.engine import loop
from zerogap.engine.plan import StepPlan

PARAMS = (
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 1.0},
    {"temperature": 0.3, "top_k": 3},
    {"temperature": 0.3, "frequency_penalty": 0.5},
    {"temperature": 0.3, "logit_bias": {5: 2.0}},
)


def run(requests, **changes):
    engine = tiny_engine(**changes)
    outputs = engine.generate(requests)
    engine.check_integrity()
    return outputs, engine.stats


def requests(**params):
    """Two groups, prompts that end inside a page and at its end."""
    return [request(prompt(length, seed=length), n=8, **params) for length in (21, 32)]


def alone(monkeypatch):
    monkeypatch.setattr(StepPlan, "_duplicate_of", lambda *_: None)


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("changes", [{}, {"max_running": 5}, {"kv_cache_tokens": 16 * 24}])
def test_sharing_rows_changes_no_bit(monkeypatch, params, changes):
    shared, stats = run(requests(**params), **changes)
    with monkeypatch.context() as patch:
        alone(patch)
        apart, apart_stats = run(requests(**params), **changes)
    EXACT.check(reported(shared), reported(apart))
    assert apart_stats.num_shared_decode_tokens == 0
    if changes != {"kv_cache_tokens": 16 * 24}:  # retractions change which rows are computed
        assert stats.num_decode_tokens + stats.num_shared_decode_tokens == apart_stats.num_decode_tokens  # fmt: skip


def test_greedy_siblings_that_start_together_cost_one_row_a_step():
    _, stats = run([request(n=8, temperature=0.0)])
    # 19 decode rows each: the one that computed the prompt is a step ahead and alone, seven are one.
    assert stats.num_decode_tokens == 2 * 19
    assert stats.num_shared_decode_tokens == 6 * 19


def test_duplicates_that_never_part_are_noticed(monkeypatch):
    expected, _ = run(requests(temperature=1.0))
    monkeypatch.setattr(loop, "new_branch", lambda: 1)
    assert_notices(
        "siblings stay in one branch whatever they draw",
        lambda: EXACT.check(reported(run(requests(temperature=1.0))[0]), reported(expected)),
    )


def test_a_weight_version_in_the_middle_changes_nothing_about_duplicates(monkeypatch):
    def interrupted():
        engine = tiny_engine()
        steps = []

        def update(_progress):
            steps.append(1)
            if len(steps) == 6:
                engine.pause_generation("in_place")
                engine.set_weight_version(1)
                engine.continue_generation()

        return engine.generate(requests(temperature=0.3), on_progress=update)

    shared = interrupted()
    alone(monkeypatch)
    EXACT.check(reported(shared), reported(interrupted()))
