"""Each source of a gap is planted on purpose: it rises on its own stage, and the other four stay at exactly zero."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers.chat_tokenizers import merging_tokenizer
from helpers.kernel_paths import running_on
from helpers.ledgers import RoutedScorer, drawn, entry_of, same_ids, scorer_of
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import log_softmax, logits_of, request, tiny_engine
from helpers.tiny_models import randomize, tiny_model
from helpers.tolerance import EXACT, FLOAT64_REFERENCE
from helpers.train_batches import train_on

from zerogap.algorithms import WeightCorrection, correct_mismatch, ledger_statistics
from zerogap.config import TrainConfig
from zerogap.data import reencode
from zerogap.errors import DataError
from zerogap.kernels.native import native
from zerogap.ledger import LedgerEntry, attribute_samples, trained_gap
from zerogap.models import CausalLM
from zerogap.obs import GAP_SOURCES, WEIGHED_SOURCES
from zerogap.train import NativeTrainer
from zerogap.types import Sample
from zerogap.weights import WeightHistory


def raw_max(entry: LedgerEntry) -> dict[str, float]:
    return {source: entry.statistics.sources[source].raw.max for source in GAP_SOURCES}


def check_only(entry: LedgerEntry, source: str | None, *, at_least: float = 1e-3) -> None:
    """``source`` has a raw mean of ``at_least`` nats a token, and every other source is exactly 0."""
    found = raw_max(entry)
    others = [name for name in GAP_SOURCES if name != source]
    EXACT.check({name: found[name] for name in others}, dict.fromkeys(others, 0.0))
    if source is not None:
        assert entry.statistics.sources[source].raw.mean >= at_least, found


class OtherKernels:
    """The trainer's forward pass with other GEMMs, or within a block that selects other kernels."""

    def __init__(self, model, block, gemm) -> None:
        self._scorer, self._block = scorer_of(model, gemm=gemm), block

    def score(self, samples, *, version, routes):
        with self._block():
            return self._scorer.score(samples, version=version, routes=routes)


def held(**models) -> WeightHistory:
    """A history of models by version, ``v4=model``."""
    history = WeightHistory(len(models))
    for name, model in models.items():
        history.remember(int(name.removeprefix("v")), model)
    return history


@torch.no_grad()
def trained(model):
    """The model some steps later, in a copy."""
    later = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    for parameter in later.parameters():
        parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return later


def test_exact_mode_is_zero_at_every_stage():
    model = tiny_model("qwen3")
    samples = drawn(tiny_engine(model), temperature=0.7)
    entry = entry_of(scorer_of(model), samples)
    check_only(entry, None)
    assert entry.statistics.total.open.max == 0.0
    assert (entry.num_tokens, entry.num_unattributed, entry.differing_share) == (240, 0, 0.0)
    assert entry.worst == ()
    with planted_fault("one weight moved by one part in a million"), torch.no_grad():
        model.norm.weight[3] *= 1 + 1e-6
        check_only(entry_of(scorer_of(model), samples), None)


FILTERS = ({"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"top_p": 0.8, "top_k": 20, "min_p": 0.02})


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_a_set_that_the_loss_does_not_know_is_sampling(params):
    model = tiny_model("qwen3")
    samples = drawn(tiny_engine(model), **params)
    entry = entry_of(scorer_of(model), samples)
    check_only(entry, "sampling", at_least=0.01)
    assert entry.statistics.total.open == entry.statistics.sources["sampling"].open
    assert {token.source for token in entry.worst} == {"sampling"}


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_sampling_is_the_log_mass_of_the_set_that_survived(params):
    """With fixed logits and policy it is the bias of a ratio against the renormalised log-prob."""
    model = tiny_model("qwen3")
    samples = drawn(tiny_engine(model), **params)
    mass = [log_mass(model, sample, **params) for sample in samples]
    found = entry_of(scorer_of(model), samples).statistics.sources["sampling"].raw
    expected = np.concatenate(mass)
    FLOAT64_REFERENCE.check(found.signed_mean, expected.mean())
    FLOAT64_REFERENCE.check(found.max, np.abs(expected).max())
    with planted_fault("one token's set unknown"):
        forgotten = [
            replace(samples[0], kept_log_mass=np.zeros(len(samples[0]))),
            *samples[1:],
        ]
        blind = entry_of(scorer_of(model), forgotten).statistics.sources["sampling"].raw
        FLOAT64_REFERENCE.check(blind.signed_mean, expected.mean())


def log_mass(model, sample, *, top_p=1.0, top_k=-1, min_p=0.0) -> np.ndarray:
    """float64 [C]: log mass of the set that filters keep of the model's own logits, one row after another."""
    at = sample.num_prompt_tokens
    found = []
    for row in logits_of(model, sample.token_ids[:at], sample.token_ids[at:]):
        chances = np.sort(np.exp(log_softmax(row)))[::-1]
        kept = chances[: top_k if top_k > 0 else None]
        kept = kept[kept >= min_p * chances[0]] if min_p else kept
        # The fewest likeliest ids that hold top_p of the mass that the other filters left.
        enough = np.cumsum(kept) - kept < top_p * kept.sum()
        found.append(np.log(kept[enough].sum()))
    return np.array(found)


KERNELS = {"GEMMs of a BLAS": nullcontext, "torch": partial(running_on, "torch")}


@pytest.mark.parametrize("kernels", KERNELS)
def test_another_order_of_additions_is_numbers(kernels):
    if not native.has_gemm:
        pytest.skip("this machine has no C++ GEMM to compare with")
    # Sums of a few terms have one order in every library; these have 256 and more.
    model = tiny_model("qwen3", hidden_size=256, intermediate_size=320)
    samples = drawn(tiny_engine(model))
    scorer = OtherKernels(model, KERNELS[kernels], "exact" if kernels == "torch" else "blas")
    entry = entry_of(scorer, samples, is_exact=False)
    check_only(entry, "numbers", at_least=1e-9)
    # A row may depend on its batch; the second path differs by less than a rounding of the logits.
    assert entry.recheck.difference < 1e-5


def test_an_engine_of_less_precision_is_numbers():
    model = tiny_model("qwen3")
    samples = drawn(tiny_engine(in_bf16(model)))
    check_only(entry_of(scorer_of(model), samples), "numbers")


def in_bf16(model):
    """The same weights in a model that computes in bf16."""
    rounded = CausalLM(model.config, precision="bf16")
    rounded.load_state_dict(model.state_dict())
    rounded.round_weights_()
    return rounded


@pytest.mark.parametrize("old", ["trainer", "rollout"])
def test_the_gap_is_measured_whatever_the_old_log_probs_are(old):
    """The trainer may take over the engine's log-probs; the ledger still scores by itself."""
    model = tiny_model("qwen3")
    samples = drawn(tiny_engine(in_bf16(model)))
    entry = entry_of(scorer_of(model), samples)
    trainer = NativeTrainer(model, TrainConfig(old_log_probs=old), total_steps=1)
    step = train_on(trainer, samples)
    assert entry.metrics()["gap/total/mean"] > 1e-3
    assert trained_gap(samples, step.old_log_probs).get("gap/trained/max") != 0.0


def test_old_weights_are_staleness():
    old = tiny_model("qwen3")
    samples = drawn(tiny_engine(old, weight_version=4))
    scorer = scorer_of(trained(old), version=7, history=held(v4=old))
    check_only(entry_of(scorer, samples, version=7), "staleness", at_least=0.01)


@pytest.mark.parametrize("source", ["sampling", "numbers", "staleness"])
def test_importance_weights_contain_what_they_are_a_remedy_for(source):
    """w = exp(old - rollout log-prob) of each trained token; truncated sampling leaves every w at 1."""
    model = tiny_model("qwen3")
    engine = tiny_engine(in_bf16(model) if source == "numbers" else model)
    samples = drawn(engine, **({"top_p": 0.9} if source == "sampling" else {}))
    scorer = scorer_of(trained(model) if source == "staleness" else model)
    old, rollout, mask = (
        np.concatenate(columns)
        for columns in (
            scorer.score(samples, version=0, routes="replayed"),
            [sample.rollout_log_probs for sample in samples],
            [sample.loss_mask for sample in samples],
        )
    )
    sample_S = np.repeat(np.arange(len(samples)), [len(sample) for sample in samples])
    weight = WeightCorrection(high=100.0)
    found = correct_mismatch(old, rollout, mask, sample_S, weight=weight).weight_S[mask]
    assert (found != 1.0).any() == (source in WEIGHED_SOURCES)


def test_old_weights_that_nobody_kept_are_counted_and_not_guessed():
    old = tiny_model("qwen3")
    samples = drawn(tiny_engine(old, weight_version=4))
    entry = entry_of(scorer_of(trained(old), version=7), samples, version=7)
    assert entry.statistics is None
    assert (entry.num_tokens, entry.num_unattributed) == (0, 240)
    assert entry.metrics() == {
        "gap/num_samples": 12.0,
        "gap/num_tokens": 0.0,
        "gap/num_unattributed": 240.0,
        "gap/recheck/max": 0.0,
    }


def test_each_token_is_scored_by_the_weights_that_drew_it():
    old, new = tiny_model("qwen3"), trained(tiny_model("qwen3"))
    before, after = drawn(tiny_engine(old, weight_version=1)), scorer_of(new, version=2)
    rescored = after.score(before, version=2, routes="replayed")
    mixed = [
        replace(
            sample,
            weight_version=np.where(late := late_half(sample), 2, sample.weight_version),
            rollout_log_probs=np.where(late, ours, sample.rollout_log_probs),
        )
        for sample, ours in zip(before, rescored, strict=True)
    ]
    scorer = scorer_of(new, version=2, history=held(v1=old))
    entry = entry_of(scorer, mixed, version=2)
    check_only(entry, "staleness", at_least=0.01)
    half = entry_of(after, mixed, version=2)
    assert (half.num_tokens, half.num_unattributed) == (120, 120)
    check_only(half, None)


def late_half(sample):
    at = np.arange(len(sample))
    return (sample.weight_version >= 0) & (at >= len(sample) - 10)


def test_a_tokenizer_that_merges_what_was_sampled_apart_is_tokens():
    tokenizer = merging_tokenizer()
    model = tiny_model("qwen3", vocab_size=tokenizer.vocab_size)
    samples = drawn_pieces(model)
    entry = entry_of(scorer_of(model), samples, reencode=lambda ids: reencode(ids, tokenizer))
    check_only(entry, "tokens", at_least=0.01)
    assert 0.1 < entry.differing_share < 0.9
    assert entry.statistics.total.open.max == 0.0
    assert entry.statistics.total.raw.mean > 0.01


def drawn_pieces(model):
    """Completions of eight pieces that merge into each other."""
    outputs = tiny_engine(model).generate([
        request((seed, 4, 7, 2), n=4, sampling_seed=seed) for seed in range(3)
    ])  # fmt: skip
    return [Sample.from_output(o, group_id=o.rid, temperature=1.0).scored(0.0) for o in outputs]


def test_a_perturbed_router_is_routing():
    samples = drawn(tiny_engine(tiny_model("qwen3")))
    experts = tuple(scorer_of(tiny_model("qwen3", seed=seed)) for seed in range(2))
    engine, trainer = (RoutedScorer(experts, np.array([1.0, weight])) for weight in (0.3, 0.5))
    recorded = engine.drawn(samples)
    check_only(entry_of(trainer, recorded), "routing", at_least=0.01)
    check_only(entry_of(engine, recorded), None)
    with pytest.raises(DataError, match="has routes, but the model that scores it has no experts"):
        entry_of(experts[0], recorded)


def test_with_replayed_routes_staleness_is_between_two_passes_on_those_routes():
    """The loss then has the present weights on the engine's routes: neither a3 nor a4 has both."""
    old = [tiny_model("qwen3", seed=seed) for seed in range(2)]
    samples = drawn(tiny_engine(tiny_model("qwen3"), weight_version=4))
    before = [scorer_of(model, version=4) for model in old]
    recorded = [
        replace(sample, rollout_log_probs=column)
        for sample, column in scored_by(RoutedScorer(tuple(before), np.array([1.0, 0.3])), samples, version=4)
    ]  # fmt: skip
    now = [scorer_of(trained(m), version=7, history=held(v4=m)) for m in old]
    trainer = RoutedScorer(tuple(now), np.array([1.0, 0.5]))
    audited = attribute_samples(recorded, trainer, version=7, is_exact=True, reencode=same_ids)
    replay = {"tokens", "routing"}
    loss = trainer.score(recorded, version=7, routes="replayed")
    seen = [o - s.rollout_log_probs for o, s in zip(loss, recorded, strict=True)]
    opened = [one.attribution.open_total(replay) for one in audited]
    FLOAT64_REFERENCE.check(np.concatenate(opened), np.concatenate(seen).astype(np.float64))
    statistics = ledger_statistics([one.attribution for one in audited], replayed=replay)
    assert statistics.sources["routing"].open.max == 0.0 < statistics.sources["routing"].raw.max
    assert statistics.sources["staleness"].open.mean > 0.01
    with planted_fault("staleness on the trainer's own routes"):
        raw = [one.attribution.differences["staleness"] for one in audited]
        FLOAT64_REFERENCE.check(np.concatenate(raw), np.concatenate(seen).astype(np.float64))


def scored_by(engine, samples, *, version):
    """(sample with routes, its log-probs) as this engine would have recorded them."""
    routed = [replace(sample, routes=engine.route(sample)) for sample in samples]
    return zip(routed, engine.score(routed, version=version, routes="replayed"), strict=True)


def test_sources_that_act_together_keep_their_own_stages():
    """Truncation, an engine in bf16 and old weights at once: each source stays apart, and they sum to the total."""
    old = tiny_model("qwen3")
    randomize(old, seed=5)
    samples = drawn(tiny_engine(in_bf16(old), weight_version=4), top_p=0.9)
    scorer = scorer_of(trained(old), version=7, history=held(v4=old))
    entry = entry_of(scorer, samples, version=7)
    sources = entry.statistics.sources
    assert sources["staleness"].raw.mean > sources["sampling"].raw.mean > sources["numbers"].raw.mean > 1e-3  # fmt: skip
    assert sources["routing"].raw.max == sources["tokens"].raw.max == 0.0
    parts = sum(sources[source].raw.signed_mean for source in GAP_SOURCES)
    FLOAT64_REFERENCE.check(parts, entry.statistics.total.raw.signed_mean)
