"""An engine whose weights are being replaced: it refuses to generate until the last tensor is there."""

import pytest
import torch
from helpers.fake_runner import fake_engine, run_until_idle
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import prompt, reported, request, tiny_engine
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT

from zerogap.errors import EngineStateError, InvalidRequest, WeightSyncError
from zerogap.types import GenerateRequest, SamplingParams
from zerogap.weights import digest_weights, named_weights


def test_nothing_is_generated_scored_or_renumbered_during_an_update():
    engine = tiny_engine()
    engine.begin_weight_update()
    assert engine.is_updating
    for call in (
        lambda: engine.generate([request()]),
        lambda: engine.score(prompt(5)),
        lambda: engine.set_weight_version(1),
    ):
        with pytest.raises(EngineStateError, match=r"has not ended, .* publish a complete version"):
            call()
    assert engine.is_idle
    engine.end_weight_update(1)
    (output,) = engine.generate([request()])
    assert output.weight_version[0] == 1


def test_requests_wait_for_the_end_and_can_be_aborted_meanwhile():
    core, runner = fake_engine()
    params = SamplingParams(max_new_tokens=6, ignore_eos=True, sampling_seed=5)
    for rid, token in (("a", 5), ("b", 6)):
        core.add_request(GenerateRequest(input_ids=(token,) * 20, sampling_params=params, rid=rid))
    core.step()
    core.begin_weight_update()
    rows = runner.num_rows
    with pytest.raises(EngineStateError, match="has not ended"):
        core.step()
    core.abort_request("a")
    with pytest.raises(EngineStateError, match="has not ended"):
        core.step()
    assert runner.num_rows == rows
    runner.weight_version = 1
    core.end_weight_update(1)
    outputs = {output.rid: output for output in run_until_idle(core)}
    assert outputs["a"].finish_reason.kind == "abort"
    assert outputs["b"].weight_version.tolist() == [0] + [1] * 5


def test_what_was_aborted_can_be_fetched_from_an_engine_that_cannot_go_on():
    core, _ = fake_engine()
    core.add_request(GenerateRequest(input_ids=(5,) * 20, rid="a"))
    core.step()
    core.begin_weight_update()
    core.abort_request(abort_all=True)
    assert [output.rid for output in core.step()] == ["a"]


def test_an_end_needs_a_beginning_and_a_version():
    core, _ = fake_engine()
    with pytest.raises(EngineStateError, match=r"end_weight_update\(1\) without"):
        core.end_weight_update(1)
    core.begin_weight_update()
    core.begin_weight_update()
    with pytest.raises(InvalidRequest, match="-1 is negative"):
        core.end_weight_update(-1)
    assert core.is_updating
    core.end_weight_update(1)
    assert (core.is_updating, core.weight_version) == (False, 1)


def test_written_weights_are_generated_with_also_by_captured_graphs():
    ours, theirs = tiny_model(seed=1), tiny_model(seed=2)
    engine = tiny_engine(ours)
    for _ in range(3):
        engine.generate([request(n=4)])
    expected = reported(tiny_engine(theirs).generate([request(n=4)]))
    num_repeated = engine._runner._graphs.num_repeated
    with planted_fault("the weights are not sent"):
        EXACT.check(reported(engine.generate([request(n=4)])), expected)
    engine.begin_weight_update()
    engine.write_weights(named_weights(theirs).items())
    engine.end_weight_update(1)
    EXACT.check(reported(engine.generate([request(n=4)])), expected)
    assert engine._runner._graphs.num_repeated > num_repeated > 0
    assert engine.digest() == digest_weights(named_weights(theirs))


def test_weights_are_written_only_during_an_update():
    with pytest.raises(EngineStateError, match="begin_weight_update"):
        tiny_engine().write_weights(named_weights(tiny_model()).items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("norm.weight"), r"1 of 15 tensors were not sent \(norm.weight\)"),
        (lambda w: w.update(surplus=w["norm.weight"]), "surplus has no place"),
        (
            lambda w: w.update({"norm.weight": torch.ones(31)}),
            r"norm.weight is float32 \[31\], and float32 \[32\]",
        ),
        (
            lambda w: w.update({"norm.weight": torch.ones(32).bfloat16()}),
            r"norm.weight is bfloat16 \[32\], and float32 \[32\]",
        ),
    ],
)
def test_weights_of_another_model_or_half_of_them_are_refused(change, message):
    engine, weights = tiny_engine(), named_weights(tiny_model(seed=2))
    change(weights)
    engine.begin_weight_update()
    with pytest.raises(WeightSyncError, match=message):
        engine.write_weights(weights.items())
    with pytest.raises(EngineStateError, match="has not ended"):
        engine.generate([request()])


def test_a_tensor_that_comes_twice_is_refused():
    engine = tiny_engine()
    weights = [*named_weights(tiny_model()).items()]
    engine.begin_weight_update()
    with pytest.raises(WeightSyncError, match=r"lm_head.weight comes twice"):
        engine.write_weights([*weights, weights[-1]])
