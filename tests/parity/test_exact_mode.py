"""Exact mode as three statements that compose, for each family in fp32 and in bf16, all to the bit.

1. The forward pass is batch-invariant. 2. The trainer's forward equals the engine's prefill. 3. The engine's decode
equals its prefill. Prefix-cache hits, chunks, retractions, shared prompts and recomputation may change nothing.
``test_engine_vs_trainer.py`` tests all three at once, over whole rollouts and steps.
"""

import functools
from dataclasses import replace

import numpy as np
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
from helpers.packed_rows import PackedRows
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import tiny_engine
from helpers.tiny_models import FAMILIES, tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import train_on

from zerogap import kernels
from zerogap.kernels.native import native

PRECISIONS = ("fp32", "bf16")
SEQUENCES = tuple(
    np.random.default_rng(seed).integers(3, 97, length).tolist()
    for seed, length in enumerate((41, 19, 1, 64))
)
ROUNDED = ("norm_linear", "swiglu_linear", "qkv_rope", "linear", "rms_norm")
"""Kernels of the forward that round in bf16."""


@pytest.fixture(params=[(f, p) for f in FAMILIES for p in PRECISIONS], ids="-".join)
def model(request):
    """A fresh model of each family in each precision."""
    family, precision = request.param
    return tiny_model(family, precision=precision)


@functools.cache
def rollout(family: str, precision: str, engine: str):
    """(samples, the engine's log-probs) of nine completions; some are retracted if pages are short."""
    model = tiny_model(family, precision=precision)
    outputs = tiny_engine(model, **ENGINES[engine]).generate(requests(0.7))
    assert (engine == "short of pages") == any(o.num_retractions for o in outputs)
    return samples_of(outputs, 0.7), [o.output_log_probs for o in outputs]


def rollout_of(model, engine="roomy"):
    return rollout(model.config.family, model.precision, engine)


def prefilled(engine, samples) -> list[np.ndarray]:
    """The engine's log-probs of each completion, from prefills alone."""
    found = []
    for sample in samples:
        start = int(np.argmax(sample.weight_version >= 0))
        found.append(engine.score(sample.token_ids, start=start, temperature=0.7))
    return found


# ------------------------------------------------------------ the three statements


@torch.no_grad()
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 2, 1, 1, 0)])
def test_a_row_of_the_forward_does_not_depend_on_its_batch(model, order):
    alone = [PackedRows([ids]).logits(model) for ids in SEQUENCES]
    together = PackedRows([SEQUENCES[i] for i in order]).logits(model)
    EXACT.check(together, torch.cat([alone[i] for i in order]))
    rows = PackedRows(SEQUENCES)
    rows.leak(12)
    with planted_fault("row 12 sees key 13"):
        EXACT.check(rows.logits(model), torch.cat(alone))


@pytest.mark.parametrize("engine", ["roomy", "chunks of 8 rows", "no prefix cache"])
def test_the_trainers_forward_is_the_engines_prefill(model, engine):
    samples, _ = rollout_of(model)
    subject = tiny_engine(model, **ENGINES[engine])
    first, again = prefilled(subject, samples), prefilled(subject, samples)
    assert (subject.stats.num_cached_tokens > 0) == (engine != "no prefix cache")
    EXACT.check(again, first)
    EXACT.check(sampled(trainer_of(model).score(samples), samples), first)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engines_decode_is_its_prefill(model, engine):
    samples, decoded = rollout_of(model, engine)
    EXACT.check(decoded, prefilled(tiny_engine(model), samples))


# ------------------------------------------------------------ what the trainer does with it


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_step_finds_the_engines_log_probs_however_it_is_packed(model, packing):
    samples, decoded = rollout_of(model)
    trained = train_on(trainer_of(model, **PACKINGS[packing]), samples)
    EXACT.check(sampled(trained.old_log_probs, samples), decoded)
    assert trained.gap.max == 0.0


def test_recomputation_changes_no_bit_of_the_weights(model):
    samples, _ = rollout_of(model)
    family, precision = model.config.family, model.precision
    again = tiny_model(family, precision=precision)
    train_on(trainer_of(model), samples)
    train_on(trainer_of(again, recompute=True), samples)
    EXACT.check(dict(again.named_parameters()), dict(model.named_parameters()))


def test_parameters_stay_in_the_models_precision_and_it_holds_after_they_have_moved(model):
    before = [p.detach().clone() for p in model.parameters()]
    engine, trainer = tiny_engine(model), trainer_of(model)
    for version in (1, 2):
        samples = samples_of(engine.generate(requests(1.0)), 1.0)
        assert train_on(trainer, samples).gap.max == 0.0
        engine.set_weight_version(version)
    assert any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    if model.is_bf16:
        EXACT.check(list(model.parameters()), [kernels.round_bf16(p) for p in model.parameters()])


# ------------------------------------------------------------ what the engine does with bf16


@pytest.mark.skipif(not native.has_gemm, reason="no C++ GEMM on this processor")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_decode_steps_are_captured_in_both_precisions(precision):
    engine = tiny_engine(tiny_model("qwen3", precision=precision))
    engine.generate(requests(1.0))
    assert engine._runner._graphs.why_not is None
    assert engine._runner._graphs.num_repeated > 10


def test_keys_and_values_of_a_bf16_model_are_bf16_values():
    engine = tiny_engine(tiny_model("qwen3", precision="bf16"))
    engine.generate(requests(1.0))
    keys = engine._runner._k_LPKHS
    assert keys.any()
    EXACT.check(keys, kernels.round_bf16(keys))
    EXACT.check(engine._runner._v_LPKSH, kernels.round_bf16(engine._runner._v_LPKSH))


# ------------------------------------------------------------ faults on one side


@pytest.mark.parametrize("kernel", ROUNDED)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_rounding_that_one_side_leaves_out_is_noticed(family, kernel, monkeypatch):
    model = tiny_model(family, precision="bf16")
    samples, decoded = rollout_of(model)
    healthy = getattr(kernels, kernel)

    def without_rounding(*arguments, compute, **rest):
        return healthy(*arguments, compute=replace(compute, rounds_bf16=False), **rest)

    monkeypatch.setattr(kernels, kernel, without_rounding)
    with planted_fault(f"{kernel} does not round in the trainer"):
        EXACT.check(sampled(trainer_of(model).score(samples), samples), decoded)


@pytest.mark.skipif(not native.has_gemm, reason="no C++ GEMM on this processor")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_gemms_of_a_blas_on_one_side_are_noticed(family, precision):
    # Sums of up to 256 terms may have the same bits: ours are cut after 256, a BLAS's elsewhere.
    model = tiny_model(family, precision=precision, hidden_size=320)
    outputs = tiny_engine(model).generate(requests(1.0))
    samples, decoded = samples_of(outputs, 1.0), [o.output_log_probs for o in outputs]
    trainer = trainer_of(model)
    trainer.use_gemm("blas")
    with planted_fault("the trainer multiplies with a BLAS"):
        EXACT.check(sampled(trainer.score(samples), samples), decoded)
    trainer.use_gemm("exact")
    EXACT.check(sampled(trainer.score(samples), samples), decoded)


@pytest.mark.skipif(not native.has_gemm, reason="no C++ GEMM on this processor")
def test_an_engine_captures_again_when_rows_need_no_tiles_again(monkeypatch):
    engine = tiny_engine(tiny_model("llama"))
    with monkeypatch.context() as patched:
        patched.setattr(native, "tile", 64)
        engine.generate(requests(1.0))
    assert "torch" in engine._runner._graphs.why_not
    engine.generate(requests(1.0))
    assert engine._runner._graphs.why_not is None


def test_an_engine_of_a_blas_captures_nothing_and_says_why():
    engine = tiny_engine(tiny_model("llama"), gemm="blas")
    engine.generate(requests(1.0))
    assert "torch" in engine._runner._graphs.why_not


@pytest.mark.parametrize("side", PRECISIONS)
def test_two_precisions_are_noticed(side):
    other = tiny_model("llama").copied(precision="bf16")
    samples, decoded = rollout("llama", side, "roomy")
    model = tiny_model("llama") if side == "bf16" else other
    with planted_fault(f"an engine in {side} and a trainer in the other precision"):
        EXACT.check(sampled(trainer_of(model).score(samples), samples), decoded)
