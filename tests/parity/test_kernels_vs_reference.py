"""The C++ kernels vs the torch reference, values and gradients, over shapes that are no multiple of a vector."""

import pytest
import torch
from helpers.attention_cases import Pages, packed_tree, random_qkv
from helpers.kernel_paths import as_tuple, running_on, values_and_gradients
from helpers.planted_fault import planted_fault, scaled
from helpers.sampling_rows import rows_for
from helpers.tolerance import EXACT, FP32_MODEL_GRADIENT, FP32_SAME_OP

from zerogap.kernels import (
    VOCAB_CHUNK,
    Head,
    log_probs,
    norm_linear,
    packed_attention,
    qkv_rope,
    rms_norm,
    rope_tables,
    sample_tokens,
    swiglu,
    swiglu_linear,
)

ROWS = (1, 11)
WIDTHS = (1, 15, 16, 17, 100)
# Every head dim with two group sizes, and every group size with several head dims.
HEADS = (
    ((2, 2), 16), ((7, 1), 16), ((3, 1), 32), ((8, 2), 32), ((2, 2), 48), ((7, 1), 48),
    ((3, 1), 64), ((8, 2), 64), ((3, 1), 80), ((7, 1), 80), ((2, 2), 128), ((8, 2), 128),
)  # fmt: skip


def check_paths(function, inputs):
    """Both backends agree on outputs and gradients, and each comparison notices a planted fault."""
    with running_on("cpu"):
        ours, gradients = values_and_gradients(function, inputs)
        wrong = [
            as_tuple(function(*inputs[:i], scaled(x), *inputs[i + 1 :]))
            for i, x in enumerate(inputs)
        ]
    with running_on("torch"):
        theirs, expected = values_and_gradients(function, inputs)
    FP32_SAME_OP.check(ours, theirs)
    FP32_MODEL_GRADIENT.check(gradients, expected)
    for outputs, gradient, reference in zip(wrong, gradients, expected, strict=True):
        with planted_fault("one input number"):
            FP32_SAME_OP.check(outputs, theirs)
        with planted_fault("one gradient"):
            FP32_MODEL_GRADIENT.check(scaled(gradient), reference)


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_every_width(num_rows, width):
    norm, weight = 1 + 0.3 * torch.randn(width), torch.randn(9, width) / width**0.5
    # A width of 1 is x / |x|, whose gradient is rounding unless eps takes part.
    x = torch.randn(num_rows, width) * (1e-3 if width == 1 else 1)
    check_paths(lambda x, norm: rms_norm(x, norm, 1e-6), [x, norm])
    check_paths(lambda x, n, w: norm_linear(x, n, w, eps=1e-6), [x, norm, weight])
    # The fault is planted in the largest number, which is made an up: a very negative gate would hide it.
    gate_up = torch.cat([torch.randn(num_rows, width), 4 * torch.randn(num_rows, width)], 1)
    check_paths(swiglu, [gate_up])
    check_paths(swiglu_linear, [gate_up, weight])


@pytest.mark.parametrize(("heads", "head_dim"), [*HEADS, ((3, 1), 2)])
def test_qkv_rope_of_every_head(heads, head_dim):
    cos, sin = rope_tables(torch.rand(head_dim // 2), torch.tensor([3, 0, 800]))
    qkv = torch.randn(3, (heads[0] + 2 * heads[1]) * head_dim)
    norms = [1 + 0.3 * torch.randn(head_dim) for _ in range(2)]

    def rope(qkv, q_norm=None, k_norm=None):
        return qkv_rope(
            qkv, cos, sin, q_norm, k_norm, num_heads=heads[0], num_kv_heads=heads[1], eps=1e-6
        )

    check_paths(rope, [qkv, *norms])
    with running_on("cpu"):
        ours, gradients = values_and_gradients(rope, [qkv])
    with running_on("torch"):
        theirs, expected = values_and_gradients(rope, [qkv])
    FP32_SAME_OP.check([*ours, *gradients], [*theirs, *expected])
    with planted_fault("one output"):
        FP32_SAME_OP.check(scaled(ours[0]), theirs[0])


def test_rope_tables_far_into_a_context():
    inv_freq, positions = torch.rand(20), torch.tensor([0, 1, 15, 4096, 131_071, 4096])
    with running_on("cpu"):
        ours = rope_tables(inv_freq, positions)
    with running_on("torch"):
        theirs = rope_tables(inv_freq, positions)
    FP32_SAME_OP.check(ours, theirs)
    with planted_fault("position off by one"), running_on("cpu"):
        FP32_SAME_OP.check(rope_tables(inv_freq, positions + 1), theirs)


@pytest.mark.parametrize(("heads", "head_dim"), HEADS)
def test_attention_of_every_head_and_group(heads, head_dim):
    # Row counts whose remainders are query tiles of 1 to 6 and page tiles of 1 to 4.
    packed = packed_tree([(None, 0, 37), (0, 18, 4), (0, 18, 1)], num_padding=2)
    layout, scale = packed.layout, head_dim**-0.5
    check_paths(
        lambda q, k, v: packed_attention(q, k, v, layout, scale=scale),
        random_qkv(packed.num_rows, *heads, head_dim),
    )


@pytest.mark.parametrize("length", [1, 16, 17, 70, 97])
def test_a_single_decode_row_over_pages(length):
    _, k, v = random_qkv(length, 6, 2, 32)
    q = torch.randn(1, 6, 32)
    outputs = []
    for path in ("cpu", "torch"):
        with running_on(path):
            pages = Pages([length], 2, 32)
            at = torch.arange(length).numpy()
            pages.attend([q.expand(length, -1, -1).contiguous(), k, v], 0 * at, at, scale=0.2)
            last = at[-1:]
            outputs.append(pages.attend([q, k[-1:], v[-1:]], 0 * last, last, scale=0.2))
    FP32_SAME_OP.check(*outputs)
    with planted_fault("one value"):
        FP32_SAME_OP.check(scaled(outputs[0]), outputs[1])


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("vocab", [2, 31, VOCAB_CHUNK + 17])
def test_log_probs_of_every_vocabulary(num_rows, vocab):
    target, temperature = torch.randint(vocab, (num_rows,)), 0.3 + torch.rand(num_rows)

    def score(hidden, head):
        return log_probs(hidden, Head(head, vocab), target, temperature)

    hidden, head = torch.randn(num_rows, 11), torch.randn(vocab, 11)
    results = []
    for path in ("cpu", "torch"):
        with running_on(path):
            results.append(values_and_gradients(score, [hidden, head]))
    (ours, gradients), (theirs, expected) = results
    FP32_SAME_OP.check(ours, theirs)
    FP32_MODEL_GRADIENT.check(gradients, expected)
    with planted_fault("one hidden number"):
        FP32_SAME_OP.check(score(scaled(hidden), head)[0], theirs[0])
    for gradient, reference in zip(gradients, expected, strict=True):
        with planted_fault("one gradient"):
            FP32_MODEL_GRADIENT.check(scaled(gradient), reference)


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"greedy": True},
        {"top_k": 9},
        {"top_p": 0.83},
        {"min_p": 0.07},
        {"top_k": 30, "top_p": 0.7, "min_p": 0.04},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab", [40, VOCAB_CHUNK + 17])
def test_the_sampler_draws_the_same_tokens(vocab, filters):
    hidden, head = torch.randn(50, 16), 0.6 * torch.randn(vocab, 16)
    edits = [(3, 1.3, 0.0), (vocab - 1, 1.0, 2.0), (7, 1.0, -torch.inf)]
    rows = rows_for(torch.rand(50, dtype=torch.float64), temperature=0.8, edits=edits, **filters)
    drawn = []
    for path in ("cpu", "torch"):
        with running_on(path):
            drawn.append(sample_tokens(hidden, Head(head, vocab), rows))
    (tokens, *numbers), (expected_tokens, *expected) = drawn
    EXACT.check(tokens, expected_tokens)
    FP32_SAME_OP.check(numbers, expected)
    with planted_fault("another token"):
        EXACT.check(tokens.roll(1), expected_tokens)
    with planted_fault("one log-prob"):
        FP32_SAME_OP.check(scaled(numbers[0]), expected[0])
