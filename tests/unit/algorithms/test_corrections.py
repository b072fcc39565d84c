import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from helpers.planted_fault import assert_notices, planted_fault
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from zerogap.algorithms import (
    CorrectionsConfig,
    MaskCorrection,
    WeightCorrection,
    correct_mismatch,
)
from zerogap.errors import DataError, NumericsError

LEVELS = ["token", "sequence", "geometric"]


def batch(seed=0, num_samples=6, scale=0.4):
    """Samples of 1-9 tokens, some of which do not train and hold NaN."""
    rng = np.random.default_rng(seed)
    sample = np.repeat(np.arange(num_samples), rng.integers(1, 10, size=num_samples))
    rollout = -rng.exponential(size=len(sample)).astype(np.float32)
    old = (rollout + rng.normal(scale=scale, size=len(sample))).astype(np.float32)
    mask = rng.random(len(sample)) < 0.8
    mask[0] = True
    old[~mask], rollout[~mask] = np.nan, np.nan
    return old, rollout, mask, sample


def loop_ratio(old, rollout, mask, sample, level, t):
    mine = [t] if level == "token" else [u for u in range(len(mask)) if sample[u] == sample[t]]
    gaps = [float(old[u]) - float(rollout[u]) for u in mine if mask[u]]
    total = sum(gaps) / len(gaps) if level == "geometric" else sum(gaps)
    return math.exp(min(max(total, -20.0), 20.0))


def loop_statistic(old, rollout, loss_mask, sample, mask, t):
    """What is compared with the bounds: the ratio, or k2 or k3, of the token or over its sample (FORMULAS.md, 7)."""
    if mask.kind == "ratio":
        return loop_ratio(old, rollout, loss_mask, sample, mask.level, t)
    estimate = {"k2": lambda d: d * d / 2, "k3": lambda d: math.exp(d) - 1 - d}[mask.kind]
    members = [u for u in range(len(loss_mask)) if loss_mask[u] and sample[u] == sample[t]]
    mine = [t] if mask.level == "token" else members
    total = sum(estimate(float(old[u]) - float(rollout[u])) for u in mine)
    return total / len(mine) if mask.level == "geometric" else total


def loop(columns, *, weight=None, mask=None, veto=None):
    """The definition, one token at a time: (weight, keep)."""
    *_, loss_mask, sample = columns
    weights, keep = [1.0] * len(sample), [False] * len(sample)
    for t in np.flatnonzero(loss_mask):
        if weight:
            w = loop_ratio(*columns, weight.level, t)
            low = weight.low if weight.kind == "clip" else 0.0
            weights[t] = min(max(w, low), weight.high)
        keep[t] = True
        if mask:
            keep[t] = mask.low <= loop_statistic(*columns, mask, t) <= mask.high
        for u in range(len(sample)):
            if veto and loss_mask[u] and sample[u] == sample[t]:
                keep[t] = keep[t] and loop_ratio(*columns, "token", u) >= veto
    if weight and weight.normalize:
        mean = sum(weights[t] for t in np.flatnonzero(loss_mask)) / int(loss_mask.sum())
        weights = [w / mean if m else 1.0 for w, m in zip(weights, loss_mask, strict=True)]
    return np.array(weights), np.array(keep)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("kind", "low"), [("truncate", 0.0), ("clip", 0.8)])
@pytest.mark.parametrize("level", LEVELS)
def test_weights_match_the_loop(level, kind, low, normalize):
    columns = batch()
    rule = WeightCorrection(kind=kind, level=level, low=low, high=1.3, normalize=normalize)
    found = correct_mismatch(*columns, weight=rule)
    expected, _ = loop(columns, weight=rule)
    FLOAT64_SAME_OP.check(found.weight_S, expected)
    EXACT.check(found.keep_S, columns[2])
    other = LEVELS[LEVELS.index(level) - 1]
    wrong, _ = loop(columns, weight=rule.model_copy(update={"level": other}))
    assert_notices("another level", lambda: FLOAT64_SAME_OP.check(found.weight_S, wrong))


@pytest.mark.parametrize("veto", [None, 0.6])
@pytest.mark.parametrize("level", LEVELS)
def test_rejections_match_the_loop_and_leave_weights_alone(level, veto):
    columns = batch(1, num_samples=20, scale=0.2)
    mask = MaskCorrection(level=level, low=0.9, high=1.1)
    found = correct_mismatch(*columns, mask=mask, veto=veto)
    _, keep = loop(columns, mask=mask, veto=veto)
    EXACT.check(found.keep_S, keep)
    EXACT.check(found.weight_S, np.ones(len(keep)))
    assert 0 < keep.sum() < columns[2].sum()
    _, looser = loop(columns, mask=mask.model_copy(update={"low": 0.0, "high": 1e9}), veto=veto)
    assert_notices("no bounds", lambda: EXACT.check(found.keep_S, looser))


@pytest.mark.parametrize("kind", ["k2", "k3"])
@pytest.mark.parametrize("level", LEVELS)
def test_rejections_by_an_estimate_match_the_loop(level, kind):
    columns = batch(1, num_samples=20, scale=0.2)
    high = {"token": 0.02, "sequence": 0.08, "geometric": 0.02}[level]
    mask = MaskCorrection(kind=kind, level=level, high=high)
    found = correct_mismatch(*columns, mask=mask)
    EXACT.check(found.keep_S, loop(columns, mask=mask)[1])
    assert 0 < found.keep_S.sum() < columns[2].sum()
    other = mask.model_copy(update={"high": 2 * high})
    assert_notices("another bound", lambda: EXACT.check(found.keep_S, loop(columns, mask=other)[1]))


def test_a_mask_needs_its_bounds_for_they_depend_on_the_level():
    """The old bounds of every level, [0.5, 2], at mean |d| = 0.2 over 500 tokens: almost nothing, almost everything, nothing."""
    with pytest.raises(ValidationError, match="high"):
        MaskCorrection()
    d = np.random.default_rng(0).normal(scale=0.25, size=500 * 200)
    sample = np.repeat(np.arange(200), 500)

    def kept(level):
        mask = MaskCorrection(level=level, low=0.5, high=2.0)
        return correct_mismatch(d, np.zeros(len(d)), np.ones(len(d), bool), sample, mask=mask).statistics.fraction_kept  # fmt: skip

    assert 0.99 < kept("token") < 0.998
    assert 0.04 < kept("sequence") < 0.16
    assert kept("geometric") == 1.0


@pytest.mark.parametrize(
    ("options", "why"),
    [({"high": 0.9}, "a ratio without a gap is 1"), ({"kind": "k3", "low": 0.1, "high": 1.0}, "it is 0 without a gap")],
)  # fmt: skip
def test_bounds_that_would_drop_what_agrees_are_refused(options, why):
    with pytest.raises(ValidationError, match=why):
        MaskCorrection(**options)


def test_a_weight_and_a_rejection_are_decided_separately():
    columns = batch(2)
    weight = WeightCorrection(high=1.2, normalize=True)
    mask = MaskCorrection(low=0.9, high=1.1)
    both = correct_mismatch(*columns, weight=weight, mask=mask)
    EXACT.check(both.weight_S, correct_mismatch(*columns, weight=weight).weight_S)
    EXACT.check(both.keep_S, correct_mismatch(*columns, mask=mask).keep_S)
    kept_mean = both.weight_S[both.keep_S].mean()
    assert_notices(
        "normalised over what was kept", lambda: FLOAT64_SAME_OP.check(kept_mean, np.array(1.0))
    )


DOCS = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
PUBLISHED = {
    # https://arxiv.org/abs/2510.18855: the ratio inside the band, 0 outside.
    "IcePop": ("token", lambda w: w if 0.5 <= w <= 5.0 else 0.0),
    "MIS": ("sequence", lambda w: w if w <= 3.0 else 0.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_the_docs_call_a_published_form_is_that_form(name):
    tables = re.search(rf"\*\*{name}\*\* is\s`(.+?)` with `(.+?)`", DOCS)
    config = CorrectionsConfig.model_validate(tomllib.loads("\n".join(tables.groups())))
    columns = batch(5, num_samples=60, scale=1.0)
    found = correct_mismatch(*columns, weight=config.weight, mask=config.mask)
    level, form = PUBLISHED[name]
    trained = np.flatnonzero(columns[2])
    expected = np.array([form(loop_ratio(*columns, level, t)) for t in trained])
    FLOAT64_SAME_OP.check((found.weight_S * found.keep_S)[trained], expected)
    with planted_fault("what stays weighs 1"):
        FLOAT64_SAME_OP.check(found.keep_S[trained] * 1.0, expected)
    alone = correct_mismatch(*columns, weight=config.weight)
    with planted_fault("what is outside stays, truncated"):
        FLOAT64_SAME_OP.check(alone.weight_S[trained], expected)


def test_normalised_weights_have_mean_one_over_the_whole_train_batch():
    columns = batch(3, num_samples=9)
    weight = WeightCorrection(high=1.4, normalize=True)
    whole = correct_mismatch(*columns, weight=weight)
    FLOAT64_SAME_OP.check(whole.weight_S[columns[2]].mean(), np.array(1.0))
    half = columns[3] < 4
    part = correct_mismatch(*(column[half] for column in columns), weight=weight)
    assert_notices(
        "normalised in a micro-batch",
        lambda: FLOAT64_SAME_OP.check(part.weight_S, whole.weight_S[half]),
    )


@given(st.integers(0, 1000), st.sampled_from(LEVELS), st.booleans())
def test_the_order_of_records_changes_no_bit(seed, level, normalize):
    columns = batch(seed, num_samples=5)
    rules = {
        "weight": WeightCorrection(level=level, high=1.3, normalize=normalize),
        "mask": MaskCorrection(level=level, low=0.7, high=1.5),
        "veto": 0.5,
    }
    found = correct_mismatch(*columns, **rules)
    order = np.concatenate(
        [np.flatnonzero(columns[3] == r) for r in np.random.default_rng(seed).permutation(5)]
    )
    shuffled = correct_mismatch(*(column[order] for column in columns), **rules)
    EXACT.check(shuffled.weight_S, found.weight_S[order])
    EXACT.check(shuffled.keep_S, found.keep_S[order])


def test_statistics_match_the_loop_with_corrections_off():
    columns = batch(4)
    old, rollout, mask, sample = columns
    found = correct_mismatch(*columns).statistics
    tokens = np.flatnonzero(mask)
    gaps = [float(old[t]) - float(rollout[t]) for t in tokens]
    ratios = [math.exp(d) for d in gaps]
    members = [[t for t in tokens if sample[t] == r] for r in range(6)]
    members = [mine for mine in members if mine]

    def log_perplexity(column):
        means = [sum(-float(column[t]) for t in mine) / len(mine) for mine in members]
        return sum(means) / len(means)

    sums = [sum(float(old[t]) - float(rollout[t]) for t in mine) for mine in members]
    expected = {
        "k1": -sum(gaps) / len(gaps),
        "k3": sum(math.exp(d) - 1 - d for d in gaps) / len(gaps),
        "chi2_token": sum(w * w for w in ratios) / len(ratios) - 1,
        "chi2_sequence": sum(math.exp(d) ** 2 for d in sums) / len(sums) - 1,
        "rollout_log_perplexity": log_perplexity(rollout),
        "old_log_perplexity": log_perplexity(old),
        "log_perplexity_gap": log_perplexity(old) - log_perplexity(rollout),
    }
    FLOAT64_SAME_OP.check({name: getattr(found, name) for name in expected}, expected)
    before = {
        "mean": sum(ratios) / len(ratios),
        "min": min(ratios),
        "max": max(ratios),
        "effective_share": sum(ratios) ** 2 / (len(ratios) * sum(w * w for w in ratios)),
    }
    FLOAT64_SAME_OP.check(vars(found.weight_before), before)
    EXACT.check(
        vars(found.weight_after), {"mean": 1.0, "min": 1.0, "max": 1.0, "effective_share": 1.0}
    )
    assert (found.num_tokens, found.num_samples, found.fraction_kept) == (len(tokens), 6, 1.0)
    with planted_fault("k1 with its sign turned"):
        FLOAT64_SAME_OP.check(-found.k1, expected["k1"])


def test_fractions_count_what_was_done():
    rollout = np.full(8, -1.0, np.float32)
    ratios = np.array([0.1, 0.5, 1.0, 1.0, 1.0, 1.0, 3.0, 4.0])
    old = (rollout + np.log(ratios)).astype(np.float32)
    sample = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    found = correct_mismatch(
        old, rollout, np.ones(8, bool), sample,
        weight=WeightCorrection(kind="clip", low=0.2, high=3.5), mask=MaskCorrection(low=0.2, high=2.0), veto=0.2,
    )  # fmt: skip
    counted = found.statistics
    assert (counted.fraction_truncated_low, counted.fraction_truncated_high) == (1 / 8, 1 / 8)
    assert (counted.fraction_rejected_low, counted.fraction_rejected_high) == (1 / 8, 2 / 8)
    assert (counted.num_vetoed_tokens, counted.num_vetoed_samples) == (1, 1)
    assert counted.fraction_kept == 4 / 8
    EXACT.check(found.keep_S, np.array([False, False, True, True, True, True, False, False]))
    EXACT.check(counted.weight_after.min, np.array(0.2))
    assert counted.weight_after.effective_share > counted.weight_before.effective_share


def test_equal_log_probs_are_left_alone_to_the_bit():
    log_probs = np.array([-0.1, -3.0, -7.0], np.float32)
    found = correct_mismatch(
        log_probs, log_probs.copy(), np.ones(3, bool), np.array([0, 0, 1]),
        weight=WeightCorrection(level="sequence", normalize=True), mask=MaskCorrection(low=0.99, high=1.01), veto=0.5,
    )  # fmt: skip
    EXACT.check(found.weight_S, np.ones(3))
    assert found.keep_S.all()
    assert found.statistics.weight_before.effective_share == 1.0
    assert (found.statistics.k1, found.statistics.k3) == (0.0, 0.0)


def test_a_huge_difference_gives_finite_numbers():
    old, rollout = np.array([-900.0, -1.0]), np.array([-1.0, -900.0])
    found = correct_mismatch(
        old, rollout, np.ones(2, bool), np.array([0, 1]), weight=WeightCorrection(normalize=True)
    )
    assert np.isfinite(found.weight_S).all()
    for value in vars(found.statistics).values():
        assert np.isfinite(list(vars(value).values()) if hasattr(value, "max") else value).all()


@pytest.mark.parametrize("column", [0, 1])
def test_a_missing_log_prob_that_counts_names_its_token(column):
    columns = [c.copy() for c in batch()]
    columns[column][0] = np.nan
    with pytest.raises(NumericsError, match=r"log-prob of rollout r3, position 0 is nan \(1 of"):
        correct_mismatch(*columns, name_token=lambda s: f"rollout r3, position {s}")


def test_nothing_that_trains_is_refused():
    with pytest.raises(DataError, match="mask of 2 tokens is empty"):
        correct_mismatch(np.zeros(2), np.zeros(2), np.zeros(2, bool), np.zeros(2, int))
