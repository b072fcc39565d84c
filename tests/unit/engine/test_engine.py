"""Whole requests through a two-layer model: drawn tokens, their log-probs, and that nothing else changes them."""

import numpy as np
import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import (
    EOS,
    chosen,
    log_softmax,
    logits_of,
    prompt,
    reported,
    request,
    tiny_engine,
)
from helpers.tiny_models import FAMILIES, tiny_model
from helpers.tolerance import EXACT, FP32_MODEL

from zerogap.errors import ConfigError, EngineStateError, InvalidRequest, NumericsError

MIXED = [
    request(prompt(5, 1), n=3, sampling_seed=1),
    request(prompt(16, 2), n=2, sampling_seed=2, temperature=0.7),
    request(prompt(37, 3), n=2, sampling_seed=3, top_p=0.8, max_new_tokens=9),
    request(prompt(37, 3)[:30], sampling_seed=4, top_k=7, temperature=1.5),
    request(prompt(50, 5), sampling_seed=5, temperature=0.0),
    request(prompt(21, 6), sampling_seed=6, frequency_penalty=0.5, repetition_penalty=1.2),
]


def alone(engine_of) -> list:
    """Each request alone in its own engine."""
    return [output for one in MIXED for output in engine_of().generate([one])]


# ------------------------------------------------- nothing that is computed beside a token changes it


@pytest.mark.parametrize("family", FAMILIES)
def test_a_request_has_the_same_bits_in_any_company(family):
    model = tiny_model(family)
    together = tiny_engine(model).generate(MIXED)
    EXACT.check(reported(together), reported(alone(lambda: tiny_engine(model))))
    reversed_order = tiny_engine(model).generate(MIXED[::-1])
    by_rid = {(o.rid, o.index): o for o in reversed_order}
    EXACT.check(reported(together), reported([by_rid[o.rid, o.index] for o in together]))
    with planted_fault("one weight one percent larger"):
        model.layers[0].down.weight.data[3] *= 1.01
        EXACT.check(reported(together), reported(tiny_engine(model).generate(MIXED)))


@pytest.mark.parametrize("max_scheduled_tokens", [1, 3, 8, 13, 64])
def test_chunks_of_any_size_give_the_same_bits(max_scheduled_tokens):
    expected = tiny_engine().generate(MIXED)
    chunked = tiny_engine(
        max_running=min(4, max_scheduled_tokens), max_scheduled_tokens=max_scheduled_tokens
    )
    EXACT.check(reported(chunked.generate(MIXED)), reported(expected))


def test_a_prefix_hit_gives_the_bits_of_a_miss():
    engine = tiny_engine()
    miss = engine.generate(MIXED)
    hit = engine.generate(MIXED)
    never = tiny_engine(prefix_cache=False).generate(MIXED)
    EXACT.check(reported(hit), reported(miss))
    EXACT.check(reported(never), reported(miss))
    assert all(o.num_cached_tokens >= len(o.prompt_ids) - 1 for o in hit)
    assert sum(o.num_cached_tokens for o in never) < sum(o.num_cached_tokens for o in hit)


def test_retraction_gives_the_bits_of_an_undisturbed_run():
    expected = tiny_engine().generate(MIXED)
    tight = tiny_engine(kv_cache_tokens=128, max_running=8)
    outputs = tight.generate(MIXED)
    assert tight.stats.num_retractions > 0
    EXACT.check(reported(outputs), reported(expected))


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_gives_the_bits_of_an_undisturbed_run(mode):
    expected = tiny_engine().generate(MIXED)
    engine = tiny_engine()

    def pause_now_and_then(progress):
        if engine.stats.num_steps % 3 == 0:
            engine.pause_generation(mode)
            engine.continue_generation()

    EXACT.check(
        reported(engine.generate(MIXED, on_progress=pause_now_and_then)), reported(expected)
    )


def test_the_same_seed_draws_the_same_and_another_one_does_not():
    engine = tiny_engine()
    first, again, other = (engine.generate([request(sampling_seed=s)])[0] for s in (7, 7, 8))
    assert first.output_ids.tolist() == again.output_ids.tolist() != other.output_ids.tolist()


def test_the_reported_seed_of_a_request_without_one_repeats_it():
    (first,) = tiny_engine(seed=3).generate([request(sampling_seed=None)])
    (again,) = tiny_engine(seed=99).generate([request(sampling_seed=first.seed)])
    EXACT.check(reported([again]), reported([first]))


def test_siblings_draw_different_tokens_from_one_prompt():
    outputs = tiny_engine().generate([request(n=8)])
    assert [o.index for o in outputs] == list(range(8))
    assert len({tuple(o.output_ids.tolist()) for o in outputs}) == 8
    assert len({int(o.output_ids[0]) for o in outputs}) > 1


def test_a_groups_prompt_is_prefilled_once():
    engine = tiny_engine()
    outputs = engine.generate([request(prompt(37), n=8, max_new_tokens=5)])
    assert engine.stats.num_prefill_tokens == 37
    stats = engine.stats
    assert stats.num_decode_tokens + stats.num_shared_decode_tokens == 8 * 4
    assert sorted(o.num_cached_tokens for o in outputs) == [0] + [37] * 7


# ------------------------------------------------------------------------------- what is reported


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.7])
def test_a_log_prob_is_log_softmax_of_logits_over_temperature(temperature):
    model = tiny_model()
    (output,) = tiny_engine(model).generate([request(temperature=temperature)])
    logits = logits_of(model, output.prompt_ids, output.output_ids)
    expected = chosen(log_softmax(logits / temperature), output.output_ids)
    FP32_MODEL.check(output.output_log_probs, expected)
    if temperature != 1:
        with planted_fault("log-probs divided by the temperature instead of logits"):
            wrong = chosen(log_softmax(logits) / temperature, output.output_ids)
            FP32_MODEL.check(output.output_log_probs, wrong)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_log_probs_of_all_ids_sum_to_one(temperature):
    model = tiny_model()
    model.limit_vocabulary(40)
    engine = tiny_engine(model)
    context = [i % 40 for i in prompt(12)]
    scores = [
        engine.score([*context, token], start=12, temperature=temperature)[0] for token in range(40)
    ]
    FP32_MODEL.check(np.exp(np.array(scores, np.float64)).sum(), np.array(1.0))


def test_below_the_greedy_temperature_the_best_token_is_taken_and_scored_at_one():
    model = tiny_model()
    (output,) = tiny_engine(model).generate([request(temperature=1e-7)])
    logits = logits_of(model, output.prompt_ids, output.output_ids)
    assert output.output_ids.tolist() == logits.argmax(-1).tolist()
    FP32_MODEL.check(output.output_log_probs, chosen(log_softmax(logits), output.output_ids))


@pytest.mark.parametrize("max_scheduled_tokens", [8, 256])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_score_gives_the_bits_that_decode_reported(temperature, max_scheduled_tokens):
    engine = tiny_engine(max_running=8, max_scheduled_tokens=max_scheduled_tokens)
    asked = [request(prompt(n, n), n=2, temperature=temperature) for n in (3, 16, 29)]
    outputs = engine.generate(asked)
    for output in outputs:
        ids = np.concatenate([output.prompt_ids, output.output_ids])
        scores = engine.score(ids, start=len(output.prompt_ids), temperature=temperature)
        EXACT.check(scores, output.output_log_probs)
        with planted_fault("scored at another temperature"):
            EXACT.check(engine.score(ids, start=len(output.prompt_ids), temperature=0.9), scores)
    engine.check_integrity()


def test_every_start_of_a_score_gives_the_same_bits():
    engine = tiny_engine()
    ids = prompt(40)
    whole = engine.score(ids)
    assert len(whole) == 39
    for start in (2, 16, 17, 39, 40):
        EXACT.check(engine.score(ids, start=start), whole[start - 1 :])


def test_a_score_changes_nothing_for_what_is_drawn_later():
    plain, scoring = tiny_engine(), tiny_engine()
    scoring.score(prompt(30))
    asked = [request(sampling_seed=None)]
    EXACT.check(reported(scoring.generate(asked)), reported(plain.generate(asked)))


def test_penalties_reach_log_probs_and_draws_as_a_float64_loop_says():
    model = tiny_model()
    params = {
        "frequency_penalty": 0.7,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.4,
        "logit_bias": {11: 2.0, 12: -1.0},
        "temperature": 0.8,
    }
    (output,) = tiny_engine(model).generate([request(**params, max_new_tokens=40)])
    logits = logits_of(model, output.prompt_ids, output.output_ids)
    for position in range(len(logits)):
        seen = output.output_ids[:position].tolist()
        for token in {*seen, *output.prompt_ids.tolist()}:
            value = logits[position, token]
            logits[position, token] = value / 1.4 if value > 0 else value * 1.4
        for token in set(seen):
            logits[position, token] -= 0.7 * seen.count(token) + 0.3
        logits[position, 11] += 2.0
        logits[position, 12] -= 1.0
    expected = chosen(log_softmax(logits / 0.8), output.output_ids)
    FP32_MODEL.check(output.output_log_probs, expected)
    assert len(set(output.output_ids.tolist())) < 40, "no token came twice, so nothing was tested"
    with planted_fault("the last draw is penalised for itself"):
        logits[-1, output.output_ids[-1]] -= 0.7
        wrong = chosen(log_softmax(logits / 0.8), output.output_ids)
        FP32_MODEL.check(output.output_log_probs, wrong)


def test_the_kept_mass_is_what_top_k_left():
    model = tiny_model()
    (output,) = tiny_engine(model).generate([request(top_k=5)])
    log_probs = log_softmax(logits_of(model, output.prompt_ids, output.output_ids))
    kept = np.log(np.exp(np.sort(log_probs)[:, -5:]).sum(-1)).astype(np.float32)
    FP32_MODEL.check(output.kept_log_mass, kept)
    assert (chosen(log_probs, output.output_ids) >= np.sort(log_probs)[:, -5] - 1e-6).all()
    (plain,) = tiny_engine(model).generate([request()])
    assert (plain.kept_log_mass == 0).all()


def test_draws_follow_the_softmax():
    """Chi-square of 2000 siblings' first tokens; the 1e-6 quantile, so that chance never fails it."""
    model = tiny_model()
    outputs = tiny_engine(model).generate([request(n=2000, max_new_tokens=1, temperature=0.7)])
    probabilities = np.exp(log_softmax(logits_of(model, prompt(21), [0])[0] / 0.7))
    counts = np.bincount([int(o.output_ids[0]) for o in outputs], minlength=97)
    assert chi_square_excess(counts, probabilities) < 1
    with planted_fault("drawn at temperature 1"):
        wrong = np.exp(log_softmax(logits_of(model, prompt(21), [0])[0]))
        assert chi_square_excess(counts, wrong) < 1


def chi_square_excess(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square over its 1 - 1e-6 quantile (Wilson-Hilferty); rare ids are pooled."""
    expected = counts.sum() * probabilities
    is_rare = expected < 5
    observed = np.append(counts[~is_rare], counts[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    statistic = ((observed - expected) ** 2 / expected).sum()
    degrees = len(observed) - 1
    one_in_a_million = 4.753
    spread = 2 / (9 * degrees)
    return statistic / (degrees * (1 - spread + one_in_a_million * spread**0.5) ** 3)


# ------------------------------------------------------------------------------ where it ends


@pytest.mark.parametrize("eos", [32, 7, 96])
def test_every_declared_eos_stops(eos):
    engine = tiny_engine(eos_token_ids=(32, 7, 96))
    forced = request(ignore_eos=False, logit_bias={eos: 40.0})
    (output,) = engine.generate([forced])
    assert (output.finish_reason.kind, output.finish_reason.matched) == ("stop", eos)
    assert output.output_ids.tolist() == [eos]
    assert len(output.output_log_probs) == 1


def test_ids_past_the_vocabulary_limit_are_never_drawn_and_carry_no_mass():
    model = tiny_model()
    model.head_weight.data[90] *= 0
    model.head_weight.data[90:] += 100 * model.head_weight.data[5]
    asked = request([i % 90 for i in prompt(21)], max_new_tokens=60)
    model.limit_vocabulary(90)
    (output,) = tiny_engine(model).generate([asked])
    assert output.output_ids.max() < 90
    logits = logits_of(model, output.prompt_ids, output.output_ids)[:, :90]
    FP32_MODEL.check(output.output_log_probs, chosen(log_softmax(logits), output.output_ids))
    with planted_fault("padded columns keep their mass"):
        padded = logits_of(model, output.prompt_ids, output.output_ids)
        FP32_MODEL.check(output.output_log_probs, chosen(log_softmax(padded), output.output_ids))


def test_a_stop_string_adds_no_token_and_trims_only_text():
    def letters(ids, skip_special):
        return "".join(chr(ord("!") + i) for i in ids)

    engine = tiny_engine(detokenizer=letters)
    (free,) = engine.generate([request()])
    stop = free.text[6:9]
    (output,) = engine.generate([request(stop=(stop,))])
    end = free.text.index(stop) + 3
    assert (output.finish_reason.kind, output.finish_reason.matched) == ("stop", stop)
    assert output.output_ids.tolist() == free.output_ids.tolist()[:end]
    EXACT.check(output.output_log_probs, free.output_log_probs[:end])
    assert output.text == free.text[: end - 3]


def test_no_stop_before_the_minimum():
    wants_to_stop = {"ignore_eos": False, "logit_bias": {EOS: 40.0}}
    (output,) = tiny_engine().generate([request(**wants_to_stop, min_new_tokens=6)])
    assert len(output.output_ids) == 7
    assert EOS not in output.output_ids[:6]
    assert output.output_ids[6] == EOS
    assert np.isfinite(output.output_log_probs).all()


def test_eos_may_be_ignored():
    (output,) = tiny_engine().generate([request(ignore_eos=True, logit_bias={EOS: 40.0})])
    assert (output.finish_reason.kind, len(output.output_ids)) == ("length", 20)


# ------------------------------------------------------------------------------ weights and versions


def test_an_update_between_steps_splits_the_versions_and_the_bits():
    model = tiny_model()
    engine = tiny_engine(model)
    before, after = tiny_model(), tiny_model(seed=1)

    def update(progress):
        if progress.num_tokens == 8 and engine.weight_version == 0:
            engine.pause_generation("retract")
            model.load_state_dict(after.state_dict())
            engine.set_weight_version(1)
            engine.continue_generation()

    (output,) = engine.generate([request()], on_progress=update)
    assert output.weight_version.tolist() == [0] * 8 + [1] * 12
    for version, weights in enumerate((before, after)):
        ids = np.concatenate([output.prompt_ids, output.output_ids])
        scores = tiny_engine(weights).score(ids, start=len(output.prompt_ids))
        part = slice(0, 8) if version == 0 else slice(8, 20)
        EXACT.check(scores[part], output.output_log_probs[part])


def test_weights_that_are_not_numbers_stop_the_engine_and_leave_no_trace():
    model = tiny_model()
    engine = tiny_engine(model)
    good = engine.generate([request()])
    weight = model.layers[0].qkv.weight.data
    saved = weight.clone()
    weight[0, 0] = torch.nan
    engine.set_weight_version(1)
    with pytest.raises(NumericsError, match="weight version 1"):
        engine.generate([request()])
    with pytest.raises(NumericsError):
        engine.score(prompt(20))
    assert engine.is_idle
    weight.copy_(saved)
    engine.set_weight_version(2)
    EXACT.check(reported(engine.generate([request()])), reported(good))


# ------------------------------------------------------------------------------ the calls themselves


def test_outputs_come_in_the_order_of_requests_with_siblings_together():
    asked = [request(prompt(40 - i, i), n=1 + i % 3, max_new_tokens=1 + i) for i in range(6)]
    outputs = tiny_engine(max_running=3).generate(asked)
    expected = [(r.rid, i) for r in asked for i in range(r.sampling_params.n)]
    assert [(o.rid, o.index) for o in outputs] == expected
    for output in outputs:
        lengths = {len(output.output_ids), len(output.output_log_probs), len(output.kept_log_mass)}
        assert len(lengths) == 1


def test_progress_is_told_after_every_step():
    seen = []
    engine = tiny_engine()
    engine.generate([request(n=2, max_new_tokens=3)], on_progress=seen.append)
    assert [(p.num_finished, p.num_tokens) for p in seen] == [(0, 1), (0, 3), (1, 5), (2, 6)]
    assert {p.num_sequences for p in seen} == {2}


def test_one_bad_request_keeps_all_from_starting():
    engine = tiny_engine()
    with pytest.raises(InvalidRequest):
        engine.generate([request(), request((1, 999))])
    with pytest.raises(InvalidRequest, match="still open"):
        engine.generate([request(rid="a"), request(rid="a")])
    assert engine.is_idle
    assert engine.stats.num_steps == 0


def test_an_abort_inside_a_call_gives_partial_outputs():
    engine = tiny_engine()
    kept, dropped = request(rid="kept"), request(prompt(8, 4), rid="dropped", n=2)
    outputs = engine.generate(
        [kept, dropped],
        on_progress=lambda p: engine.abort_request("dropped") if p.num_tokens > 10 else None,
    )
    assert [o.finish_reason.kind for o in outputs] == ["length", "abort", "abort"]
    assert [0 < len(o.output_ids) < 20 for o in outputs] == [False, True, True]


def test_a_paused_engine_refuses_calls_that_would_hang():
    engine = tiny_engine()
    engine.pause_generation("in_place")
    for call in (
        lambda: engine.generate([request()]),
        lambda: engine.score(prompt(5)),
    ):
        with pytest.raises(EngineStateError, match="continue_generation"):
            call()
    assert engine.is_idle
    engine.continue_generation()
    assert len(engine.generate([request()])) == 1


def test_a_call_that_fails_in_its_callback_leaves_nothing_behind():
    engine = tiny_engine()

    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate([request(n=3)], on_progress=interrupt)
    assert engine.is_idle
    engine.check_integrity()


def test_a_call_within_a_calls_callback_disturbs_neither():
    engine = tiny_engine()
    expected = tiny_engine().generate([request(n=2), request(prompt(9), sampling_seed=5)])
    inner = []

    def generate_once(progress):
        if not inner:
            inner.append(None)
            inner[0] = engine.generate([request(prompt(9), sampling_seed=5)])

    outer = engine.generate([request(n=2)], on_progress=generate_once)
    EXACT.check(reported([*outer, *inner[0]]), reported(expected))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_cache_tokens": 15}, "kv_cache_tokens = 15"),
        ({"max_running": 0}, "max_running = 0"),
        ({"max_running": 9, "max_scheduled_tokens": 8}, r"at least max_running \(9\)"),
        ({"weight_version": -1}, "weight_version = -1"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_limits_that_cannot_work_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        tiny_engine(**changes)
