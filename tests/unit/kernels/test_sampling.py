import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.planted_fault import assert_notices, planted_fault
from helpers.sampling_rows import kept_ids, rows_for
from helpers.tolerance import EXACT, FP32_SAME_OP

from zerogap.errors import KernelError
from zerogap.kernels import (
    VOCAB_CHUNK,
    Head,
    LogitsBuffer,
    log_probs,
    position_uniform,
    sample_tokens,
)

pytestmark = pytest.mark.usefixtures("path")

INF = math.inf


def draw(logits_V, rows, *, vocab_limit=None):
    """Every row draws from these logits: hidden is 1, the head is the logits."""
    logits_V = torch.as_tensor(logits_V, dtype=torch.float32)
    hidden = torch.ones(len(rows.temperature_R), 1)
    return sample_tokens(
        hidden, Head(logits_V[:, None].contiguous(), vocab_limit or len(logits_V)), rows
    )


# ------------------------------------------------------------ the draw


def check_frequencies(tokens, probabilities):
    """Chi-square at five standard deviations; ids without mass must not occur."""
    counts = torch.bincount(tokens, minlength=len(probabilities)).double()
    assert (counts[probabilities == 0] == 0).all()
    seen = probabilities > 0
    expected = len(tokens) * probabilities[seen]
    statistic = ((counts[seen] - expected) ** 2 / expected).sum().item()
    freedom = int(seen.sum()) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom), statistic


def noise(count, seed=0):
    position = np.arange(count)
    return torch.from_numpy(position_uniform(0 * position + seed, 0 * position, position))


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("filters", [{}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}])
def test_draws_have_the_frequencies_of_softmax(temperature, filters):
    logits, count = torch.randn(20), 2000
    tokens, _, _ = draw(logits, rows_for(noise(count), temperature=temperature, **filters))
    scaled = logits.double() / temperature
    kept = kept_ids(scaled, **filters)
    probabilities = torch.zeros(20, dtype=torch.float64)
    probabilities[kept] = scaled[kept].softmax(0)
    check_frequencies(tokens, probabilities)
    colder = probabilities**2 / (probabilities**2).sum()
    assert_notices("a colder draw", lambda: check_frequencies(tokens, colder))


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}])
@pytest.mark.parametrize("vocab", [50, VOCAB_CHUNK + 30])
def test_a_larger_uniform_never_draws_a_smaller_id(vocab, filters):
    uniform = torch.linspace(0, 1, 60, dtype=torch.float64)
    uniform[-1] = 1 - 2**-53
    tokens, _, _ = draw(torch.randn(vocab), rows_for(uniform, **filters))
    assert (tokens.diff() >= 0).all()
    assert len(tokens.unique()) > 20


def test_each_id_is_drawn_over_its_own_interval_of_the_inverse_cdf():
    logits = torch.randn(30)
    edges = torch.cat([torch.zeros(1).double(), logits.double().softmax(0).cumsum(0)])
    inside = 1e-5
    for uniform in (edges[:-1] + inside, edges[1:] - inside):
        tokens, _, _ = draw(logits, rows_for(uniform))
        EXACT.check(tokens, torch.arange(30))
    with planted_fault("ids off by one"):
        EXACT.check(draw(logits, rows_for(edges[1:-1] + inside))[0], torch.arange(29))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_draw_ids_that_have_mass(uniform):
    logits = torch.full((VOCAB_CHUNK + 40,), -INF)
    logits[:3] = -200.0  # e^-202 is mass in float64 and none in float32: both may say so
    logits[VOCAB_CHUNK + 5], logits[VOCAB_CHUNK + 9] = 1.0, 2.0
    (token,), (log_prob,), _ = draw(logits, rows_for([uniform]))
    assert token in ((0, VOCAB_CHUNK + 5) if uniform == 0 else (VOCAB_CHUNK + 9,))
    FP32_SAME_OP.check(log_prob, logits.log_softmax(0)[token])


def test_greedy_takes_the_lowest_of_equal_ids_whatever_the_noise():
    logits = torch.zeros(VOCAB_CHUNK + 10)
    logits[[7, 40, VOCAB_CHUNK + 3]] = 2.5
    tokens, log_prob, kept = draw(logits, rows_for(noise(5), greedy=True, top_k=3))
    assert tokens.tolist() == [7] * 5
    EXACT.check(kept, log_prob)
    FP32_SAME_OP.check(log_prob[0], logits.log_softmax(0)[7])


# ------------------------------------------------------------ the filters

LOGITS = {
    "random": lambda g: 1.2 * torch.randn(60, generator=g),
    "coarse": lambda g: torch.randint(-3, 4, (60,), generator=g).float(),
    "flat": lambda g: torch.zeros(60),
    "one_hot": lambda g: torch.where(torch.arange(60) == 17, 8.0, 0.0),
    "mostly_banned": lambda g: torch.where(
        torch.arange(60) % 9 == 4, torch.randn(60, generator=g), -INF
    ),
    "one_left": lambda g: torch.where(torch.arange(60) == 59, 0.0, -INF),
}
FILTERS = [
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 60},
    {"top_k": 1000},
    {"top_p": 0.01},
    {"top_p": 0.56},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 12, "top_p": 0.77},
    {"top_k": 12, "min_p": 0.2},
    {"top_p": 0.77, "min_p": 0.02},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.06},
]


def check_kept(logits, filters, expected, temperature=0.7):
    """Exactly the expected ids can be drawn, each over its share, and kept_log_mass is their log mass."""
    scaled = logits.double() / torch.tensor(temperature).double()
    share = scaled[expected].softmax(0).cumsum(0)
    middle = share - scaled[expected].softmax(0) / 2
    uniform = torch.cat([middle, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)])
    tokens, log_prob, kept = draw(logits, rows_for(uniform, temperature=temperature, **filters))
    assert tokens.tolist() == [*expected.tolist(), int(expected[0]), int(expected[-1])]
    FP32_SAME_OP.check(log_prob, scaled.log_softmax(0)[tokens])
    FP32_SAME_OP.check(kept, scaled.log_softmax(0)[expected].logsumexp(0).expand(len(tokens)))


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("kind", LOGITS)
def test_filters_keep_the_set_that_the_formulas_name(kind, filters):
    logits = LOGITS[kind](torch.Generator().manual_seed(3))
    expected = kept_ids(logits.double() / torch.tensor(0.7).double(), **filters)
    assert len(expected)
    check_kept(logits, filters, expected)
    if len(expected) > 1:
        assert_notices("one id less", lambda: check_kept(logits, filters, expected[1:]))


def test_top_p_counts_the_whole_vocabulary_over_several_chunks():
    logits = 2 * torch.randn(VOCAB_CHUNK + 100)
    for top_p in (0.3, 0.9):
        kept = draw(logits, rows_for([0.5], top_p=top_p))[2].exp().item()
        largest = logits.double().softmax(0).max().item()
        assert top_p <= kept + 1e-5 < top_p + largest


def test_no_filter_reports_a_whole_set():
    _, _, kept = draw(torch.randn(40), rows_for(noise(6), top_k=40, top_p=1.0, min_p=0.0))
    EXACT.check(kept, torch.zeros(6))


# ------------------------------------------------------------ edits and limits


def test_edits_scale_then_add_then_ban():
    logits = torch.tensor([2.0, -2.0, 0.5, 0.0, 1.0])
    edits = [(0, 1.25, 0.0), (1, 1.25, 0.0), (2, 2.0, -0.75), (4, 1.0, -INF)]
    edited = torch.tensor([1.6, -2.5, -0.5, 0.0, -INF]).double()
    share = edited.softmax(0)
    middle = (share.cumsum(0) - share / 2)[:4]
    tokens, log_prob, kept = draw(logits, rows_for(middle, edits=edits))
    assert tokens.tolist() == [0, 1, 2, 3]
    FP32_SAME_OP.check(log_prob, edited.log_softmax(0)[:4])
    EXACT.check(kept, torch.zeros(4))
    assert_notices(
        "a penalty forgotten",
        lambda: FP32_SAME_OP.check(log_prob[1:2], torch.tensor([-2.0]) - edited.logsumexp(0)),
    )


def test_edits_belong_to_their_row_alone():
    logits = torch.randn(10)
    plain = rows_for([0.5, 0.5, 0.5])
    one = torch.tensor([3], dtype=torch.int32)
    edited = replace(
        plain,
        edit_offsets=torch.tensor([0, 0, 1, 1]),
        edit_ids=one,
        edit_scale=torch.ones(1),
        edit_add=torch.tensor([5.0]),
    )
    before, after = draw(logits, plain)[1], draw(logits, edited)[1]
    EXACT.check(after[[0, 2]], before[[0, 2]])
    assert after[1] != before[1]


def test_a_ban_of_the_greedy_id_gives_the_next():
    logits = torch.tensor([1.0, 3.0, 2.0])
    tokens, _, _ = draw(logits, rows_for([0.0], greedy=True, edits=[(1, 1.0, -INF)]))
    assert tokens.tolist() == [2]


def test_a_banned_id_that_is_a_chunk_of_its_own_changes_nothing():
    logits = torch.randn(VOCAB_CHUNK + 1)
    bans = rows_for(noise(4), edits=[(VOCAB_CHUNK, 1.0, -INF)])
    cut = draw(logits[:-1], rows_for(noise(4)))
    EXACT.check(draw(logits, bans)[:2], cut[:2])


def test_ids_at_or_past_the_limit_are_never_drawn_and_carry_no_mass():
    logits = torch.randn(50)
    logits[40:] = 50.0
    edits = [(45, 1.0, 100.0)]  # of an id that does not exist: no effect
    for filters in ({}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}, {"greedy": True}):
        rows = rows_for(noise(200), **filters)
        padded = draw(logits, rows_for(noise(200), edits=edits, **filters), vocab_limit=40)
        EXACT.check(padded, draw(logits[:40], rows))
        assert (padded[0] < 40).all()


# ------------------------------------------------------------ log-probs


@pytest.mark.parametrize(
    ("vocab", "filters"),
    [
        (33, {"top_k": 4}),
        (33, {"top_p": 0.6}),
        (33, {"greedy": True}),
        (33, {}),
        (2 * VOCAB_CHUNK + 5, {}),
    ],
    ids=str,
)
def test_the_samplers_log_prob_has_the_bits_of_the_trainers(vocab, filters):
    """At every temperature the engine's number is the trainer's."""
    hidden, head = torch.randn(12, 16), torch.randn(vocab, 16)
    temperature = torch.tensor([0.3, 0.6, 1.0, 1.7]).repeat(3)
    rows = replace(rows_for(noise(12), **filters), temperature_R=temperature)
    tokens, ours, _ = sample_tokens(hidden, Head(head, vocab), rows)
    theirs, _ = log_probs(hidden, Head(head, vocab), tokens, temperature)
    EXACT.check(ours, theirs)
    other, _ = log_probs(hidden, Head(head, vocab), tokens, temperature * 1.001)
    assert_notices("another temperature", lambda: EXACT.check(ours, other))


def test_a_reused_buffer_gives_the_bits_of_a_fresh_one():
    buffer, head = LogitsBuffer(torch.device("cpu")), torch.randn(70, 16)
    for num_rows in (20, 3, 9):
        hidden, rows = torch.randn(num_rows, 16), rows_for(noise(num_rows))
        reused = sample_tokens(hidden, Head(head, 70), rows, buffer=buffer)
        EXACT.check(reused, sample_tokens(hidden, Head(head, 70), rows))


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}, {"greedy": True}], ids=str
)
@pytest.mark.parametrize("fault", ["nan", "nan_among_bans", "infinity", "all_banned"])
def test_a_row_without_a_distribution_draws_nothing(fault, filters):
    logits = torch.randn(VOCAB_CHUNK + 20)
    if fault == "nan_among_bans":
        logits[:VOCAB_CHUNK] = -INF
    if fault == "all_banned":
        logits[:] = -INF
    else:
        logits[5] = INF if fault == "infinity" else torch.nan
    token, log_prob, kept_log_mass = draw(logits, rows_for([0.3], **filters))
    assert token.tolist() == [-1]
    assert log_prob.isnan().all()
    assert kept_log_mass.isnan().all()


def test_only_the_row_that_has_no_distribution_is_lost():
    hidden = torch.randn(4, 8)
    hidden[2, 3] = torch.nan
    tokens, log_probs_R, _ = sample_tokens(hidden, Head(torch.randn(30, 8), 30), rows_for(noise(4)))
    assert (tokens < 0).tolist() == log_probs_R.isnan().tolist() == [False, False, True, False]


def test_a_negative_edit_id_is_refused(path):
    if path != "cpu":
        pytest.skip("torch checks its own indices")
    with pytest.raises(KernelError, match="edit_ids hold -1"):
        draw(torch.randn(5), rows_for([0.5], edits=[(-1, 1.0, 0.0)]))


def test_a_limit_that_the_head_does_not_have_is_refused():
    with pytest.raises(KernelError, match="vocab_limit 6 with a head of 5 rows"):
        draw(torch.randn(5), rows_for([0.5]), vocab_limit=6)


def test_columns_of_another_length_or_dtype_are_refused(path):
    if path != "cpu":
        pytest.skip("torch itself refuses or promotes")
    rows = rows_for([0.5, 0.5])
    with pytest.raises(KernelError, match=r"int64 tensor of shape \(2,\).*int32"):
        draw(torch.randn(5), replace(rows, top_k_R=rows.top_k_R.long()))
    with pytest.raises(KernelError, match=r"shape \(1,\).* of shape \(2,\)"):
        draw(torch.randn(5), replace(rows, top_p_R=rows.top_p_R[:1]))
