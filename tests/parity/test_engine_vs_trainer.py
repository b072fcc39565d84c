"""The central claim: the trainer's log-prob of every token has the same bits as the engine's.

Whatever the engine does on the way (batches, chunks, prefix cache, forks, retractions) and however the trainer packs
the samples. Covers families with and without biases and head norms, tied and untied heads.
"""

import pytest
import torch
from helpers.engine_samples import (
    ENGINES,
    PACKINGS,
    requests,
    sampled,
    samples_of,
    trainer_of,
)
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import blind_to_changes, prompt, request, tiny_engine
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import rewarded, train_on

from zerogap.kernels.native import native

FAMILIES = [("llama", True), ("llama", False), ("qwen2", False), ("qwen3", True)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("family", "is_tied"), FAMILIES)
def test_the_trainer_scores_what_the_engine_sampled_with_the_same_bits(
    family, is_tied, precision, engine, temperature
):
    model = tiny_model(family, tie_word_embeddings=is_tied, precision=precision)
    outputs = tiny_engine(model, **ENGINES[engine]).generate(requests(temperature))
    if engine == "short of pages":
        assert sum(o.num_retractions for o in outputs) > 0
    samples = samples_of(outputs, temperature)
    scored = trainer_of(model).score(samples)
    EXACT.check(sampled(scored, samples), [o.output_log_probs for o in outputs])


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_old_log_probs_of_a_step_are_the_engines_however_it_is_packed(packing):
    model = tiny_model("qwen3")
    outputs = tiny_engine(model).generate(requests(0.7))
    samples = samples_of(outputs, 0.7)
    trained = train_on(trainer_of(model, **PACKINGS[packing]), rewarded(samples))
    EXACT.check(sampled(trained.old_log_probs, samples), [o.output_log_probs for o in outputs])
    assert trained.gap.max == 0.0


def test_it_holds_again_after_the_weights_have_moved():
    model = tiny_model("qwen3")
    engine, trainer = tiny_engine(model), trainer_of(model)
    for version in (1, 2, 3):
        outputs = engine.generate(requests(1.0))
        samples = samples_of(outputs, 1.0)
        trained = train_on(trainer, rewarded(samples))
        assert trained.gap.max == 0.0
        engine.set_weight_version(version)
    assert {int(v) for s in samples for v in s.weight_version} == {-1, 2}


LATER = {"updates_per_step": 3, "micro_batch_tokens": 64}


def step_on(samples, *, exact_version, **changes):
    """(weights afterwards, what the step found) of a fresh model."""
    model = tiny_model("qwen3")
    trained = train_on(
        trainer_of(model, **LATER, **changes), rewarded(samples), exact_version=exact_version
    )
    return {name: p.detach() for name, p in model.named_parameters()}, trained


@pytest.mark.parametrize("params", [{}, {"top_p": 0.7}, {"temperature": 0.7, "top_k": 5}])
def test_later_updates_take_what_the_engine_reported(params):
    outputs = tiny_engine(tiny_model("qwen3")).generate([
        request(prompt(20 + seed, seed=seed), n=6, sampling_seed=seed, **params) for seed in range(6)
    ])  # fmt: skip
    samples = samples_of(outputs, params.get("temperature", 1.0))
    weights, trained = step_on(samples, exact_version=0)
    expected, plain = step_on(samples, exact_version=None)
    EXACT.check(weights, expected)
    assert trained.audit.num_taken > 0
    assert (trained.audit.num_different, plain.audit.num_taken) == (0, 0)
    assert plain.gap.max == 0.0


def test_penalties_that_nobody_mentioned_are_found_by_the_audit():
    outputs = tiny_engine(tiny_model("qwen3")).generate([
        request(prompt(20 + seed, seed=seed), n=6, sampling_seed=seed, frequency_penalty=0.5) for seed in range(6)
    ])  # fmt: skip
    samples = samples_of(outputs, 1.0)
    weights, trained = step_on(samples, exact_version=0)
    EXACT.check(weights, step_on(samples, exact_version=None)[0])
    assert trained.audit.num_taken == 0
    assert trained.audit.num_different > 0


def test_the_engines_own_score_is_what_it_reported():
    engine = tiny_engine(tiny_model("qwen2"))
    (output,) = engine.generate([request(temperature=0.7)])
    ids = (*output.prompt_ids.tolist(), *output.output_ids.tolist())
    scored = engine.score(ids, start=len(output.prompt_ids), temperature=0.7)
    EXACT.check(scored, output.output_log_probs)


def test_it_holds_in_fixed_tiles_where_the_blas_does_not_keep_rows(monkeypatch):
    monkeypatch.setattr(native, "tile", 64)
    model = tiny_model("llama")
    outputs = tiny_engine(model).generate(requests(1.0))
    samples = samples_of(outputs, 1.0)
    EXACT.check(
        sampled(trainer_of(model).score(samples), samples), [o.output_log_probs for o in outputs]
    )


@pytest.mark.parametrize("fault", ["stale cache", "a nudged weight", "another temperature"])
def test_a_fault_on_one_side_would_be_noticed(fault):
    model = tiny_model("llama")
    engine = tiny_engine(model)
    if fault == "stale cache":
        engine.generate(requests(1.0))
        with torch.no_grad():
            model.layers[0].qkv.weight.mul_(1.01)
        # The engine does not know: it reuses cached pages of the old weights.
        blind_to_changes(engine)
    outputs = engine.generate(requests(1.0))
    if fault == "a nudged weight":
        with torch.no_grad():
            model.norm.weight[3] *= 1 + 1e-6
    samples = samples_of(outputs, 0.99 if fault == "another temperature" else 1.0)
    with planted_fault(fault):
        EXACT.check(
            sampled(trainer_of(model).score(samples), samples),
            [o.output_log_probs for o in outputs],
        )
