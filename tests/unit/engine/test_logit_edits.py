import numpy as np
import pytest
from helpers.planted_fault import planted_fault
from helpers.tolerance import FLOAT64_REFERENCE

from zerogap.engine.logit_edits import LogitEdits
from zerogap.types import SamplingParams

PROMPT = np.array([4, 9, 4, *range(20, 45)], np.int32)


@pytest.mark.parametrize(
    "params",
    [
        {}, {"temperature": 0.3, "top_k": 3, "top_p": 0.5, "min_p": 0.1}, {"min_new_tokens": 2}, {"logit_bias": {3: 1.0}},
        {"frequency_penalty": 0.1}, {"presence_penalty": -0.1}, {"repetition_penalty": 0.9},
    ],
)  # fmt: skip
def test_parameters_say_whether_they_edit_logits(params):
    given = SamplingParams(**params)
    edits = LogitEdits(given, PROMPT, [1])
    edits.observe(9)
    _, scale, add = edits.entries()
    assert given.edits_logits == bool((scale != 1).any() or (add != 0).any())


def edited(logits: np.ndarray, edits: LogitEdits) -> np.ndarray:
    """Logits after the edits, the way the kernel applies them."""
    ids, scale, add = edits.entries()
    assert len(set(ids.tolist())) == len(ids), "an id is edited twice"
    result = logits.copy()
    result[ids] = np.where(logits[ids] > 0, logits[ids] / scale, logits[ids] * scale) + add
    return result


def reference(logits, params, prompt, output):
    """Penalties one id at a time, as their definitions read, in float64."""
    result = logits.copy()
    for token in range(len(logits)):
        if token in prompt or token in output:
            factor = params.repetition_penalty
            result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
        count = output.count(token)
        result[token] -= params.frequency_penalty * count
        result[token] -= params.presence_penalty if count else 0.0
        result[token] += params.logit_bias.get(token, 0.0)
    return result


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(frequency_penalty=0.5),
        SamplingParams(presence_penalty=-0.7),
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(logit_bias={3: 2.5, 9: -1.0}),
        SamplingParams(
            frequency_penalty=0.2,
            presence_penalty=0.4,
            repetition_penalty=0.8,
            logit_bias={4: 1.0},
        ),
    ],
)
def test_penalties_equal_a_float64_loop(params):
    logits = np.random.default_rng(0).normal(size=50)
    edits = LogitEdits(params, PROMPT, stop_ids=())
    output = np.random.default_rng(1).integers(0, 50, 40).tolist()
    for num_output in range(len(output)):
        ours = edited(logits, edits)
        FLOAT64_REFERENCE.check(ours, reference(logits, params, PROMPT, output[:num_output]))
        edits.observe(output[num_output])
    if not params.logit_bias:
        with planted_fault("a token not counted"):
            fewer = reference(logits, params, PROMPT[:1], output[:-5])
            FLOAT64_REFERENCE.check(edited(logits, edits), fewer)


def test_stop_ids_are_banned_until_the_minimum_is_reached():
    edits = LogitEdits(SamplingParams(min_new_tokens=2), PROMPT, stop_ids=(7, 8))
    logits = np.zeros(10)
    for _ in range(2):
        assert np.flatnonzero(np.isneginf(edited(logits, edits))).tolist() == [7, 8]
        edits.observe(1)
    assert (edited(logits, edits) == logits).all()


def test_a_stop_id_that_was_drawn_is_banned_and_penalised_in_one_entry():
    params = SamplingParams(min_new_tokens=5, frequency_penalty=1.0, logit_bias={7: 3.0})
    edits = LogitEdits(params, PROMPT, stop_ids=(7,))
    edits.observe(7)
    assert np.isneginf(edited(np.zeros(10), edits)[7])


def test_the_list_is_as_long_as_the_completion_not_the_vocabulary():
    edits = LogitEdits(SamplingParams(presence_penalty=1.0), PROMPT, stop_ids=())
    for token in (100_000, 5, 100_000, 90_000):
        edits.observe(token)
    assert edits.entries()[0].tolist() == [100_000, 5, 90_000]
