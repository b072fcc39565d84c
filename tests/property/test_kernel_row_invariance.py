"""A row's bits depend on that row alone: for every kernel, any batch, any place, on both paths.

For attention a row is a position of a sequence: alone in decode, in a prefill of any chunks among other
sequences' rows, and in packed training rows with prompts shared in any tree.
"""

import functools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from helpers.attention_cases import Pages, packed_tree, random_qkv
from helpers.examples import examples
from helpers.kernel_paths import BF16, PATHS, as_tuple, running_on
from helpers.planted_fault import planted_fault
from helpers.sampling_rows import rows_for, select_rows
from helpers.tolerance import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st

from zerogap.kernels import (
    VOCAB_CHUNK,
    Head,
    linear,
    log_probs,
    norm_linear,
    packed_attention,
    qkv_rope,
    rms_norm,
    rope_tables,
    round_bf16,
    sample_tokens,
    swiglu,
    swiglu_linear,
)

MOST_ROWS = 24
# A width that no vector divides; GEMM rows keep their bits on MKL where 4 divides the inner width.
WIDTH, OUT = 52, 21


@dataclass(frozen=True)
class RowKernel:
    """A function of per-row tensors, with those of MOST_ROWS rows."""

    function: object
    rows: list
    fixed: dict = field(default_factory=dict)

    def __call__(self, index):
        """Outputs of these rows computed together."""
        rows = [
            x[index] if isinstance(x, torch.Tensor) else select_rows(x, index) for x in self.rows
        ]
        return as_tuple(self.function(*rows))


def _kernels():
    generator = torch.Generator().manual_seed(7)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    x, gate_up, norm = normal(MOST_ROWS, WIDTH), 3 * normal(MOST_ROWS, 2 * WIDTH), normal(WIDTH)
    weight, bias = normal(OUT, WIDTH), normal(OUT)
    inv_freq, position = (
        torch.rand(13, generator=generator),
        torch.randint(4096, (MOST_ROWS,), generator=generator),
    )
    cos, sin = rope_tables(inv_freq, position)
    q_norm, k_norm, qkv = normal(26), normal(26), normal(MOST_ROWS, 5 * 26)
    heads = {"num_heads": 3, "num_kv_heads": 1, "eps": 1e-5}
    vocab = VOCAB_CHUNK + 9
    head = normal(vocab, WIDTH)
    target = torch.randint(vocab, (MOST_ROWS,), generator=generator)
    temperature = 0.3 + torch.rand(MOST_ROWS, generator=generator)
    uniform = torch.rand(MOST_ROWS, dtype=torch.float64, generator=generator)
    edits = [(5, 1.2, -0.5), (vocab - 1, 1.0, -torch.inf)]

    def sampler(**filters):
        rows = rows_for(uniform, temperature=0.8, edits=edits, **filters)
        return RowKernel(lambda x, rows: sample_tokens(x, Head(head, vocab), rows), [x, rows])

    return {
        "rms_norm": RowKernel(lambda x: rms_norm(x, norm, 1e-5), [x]),
        "swiglu": RowKernel(swiglu, [gate_up]),
        "linear": RowKernel(lambda x: linear(x, weight, bias), [x]),
        "norm_linear": RowKernel(lambda x: norm_linear(x, norm, weight, bias, eps=1e-5), [x]),
        "swiglu_linear": RowKernel(lambda x: swiglu_linear(x, weight), [gate_up]),
        "rope_tables": RowKernel(lambda p: rope_tables(inv_freq, p), [position]),
        "qkv_rope": RowKernel(lambda *x: qkv_rope(*x, None, None, **heads), [qkv, cos, sin]),
        "qkv_rope with norms": RowKernel(
            lambda *x: qkv_rope(*x, q_norm, k_norm, **heads), [qkv, cos, sin]
        ),
        "round_bf16": RowKernel(round_bf16, [x]),
        "linear in bf16": RowKernel(
            lambda x: linear(x, weight, bias, residual_TO=x[:, :OUT], compute=BF16), [x]
        ),
        "norm_linear in bf16": RowKernel(
            lambda x: norm_linear(x, norm, weight, bias, eps=1e-5, compute=BF16), [x]
        ),
        "swiglu_linear in bf16": RowKernel(
            lambda x: swiglu_linear(x, weight, compute=BF16), [gate_up]
        ),
        "qkv_rope in bf16": RowKernel(
            lambda *x: qkv_rope(*x, q_norm, k_norm, **heads, compute=BF16), [qkv, cos, sin]
        ),
        "log_probs": RowKernel(
            lambda x, y, t: log_probs(x, Head(head, vocab), y, t), [x, target, temperature]
        ),
        "sampler": sampler(),
        "sampler with filters": sampler(top_k=50, top_p=0.8, min_p=0.01),
        "greedy sampler": sampler(greedy=True),
    }


KERNELS = _kernels()


@functools.cache
def whole_batch(path, name):
    """Outputs of all rows at once."""
    with running_on(path):
        return KERNELS[name](torch.arange(MOST_ROWS))


INDEX = st.lists(st.integers(0, MOST_ROWS - 1), min_size=1, max_size=MOST_ROWS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=examples(10))
@given(index=INDEX)
def test_a_row_has_its_bits_in_any_batch_at_any_place(path, name, index):
    kernel, index = KERNELS[name], torch.tensor(index)
    with running_on(path):
        EXACT.check(kernel(index), [out[index] for out in whole_batch(path, name)])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_row_has_its_bits_alone(path, name):
    kernel = KERNELS[name]
    with running_on(path):
        for row in (0, 13, MOST_ROWS - 1):
            alone = torch.tensor([row])
            EXACT.check(kernel(alone), [out[alone] for out in whole_batch(path, name)])


@pytest.mark.parametrize("width", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100, 577])
@pytest.mark.parametrize("path", PATHS)
def test_an_element_has_its_bits_in_rows_of_every_width(path, width):
    """Where rows begin at odd addresses, a vectorised loop's tail meets another row each time."""
    x = 3 * torch.randn(MOST_ROWS, 2 * width)
    with running_on(path):
        for kernel in (swiglu, lambda x: rms_norm(x, torch.ones(x.shape[1]), 1e-5)):
            whole = kernel(x)
            for begin, end in ((0, 1), (1, 2), (3, 6), (7, 24)):
                EXACT.check(kernel(x[begin:end]), whole[begin:end])


def test_the_comparison_notices_a_row_that_knows_its_batch():
    x = torch.randn(MOST_ROWS, WIDTH)
    leaking = RowKernel(lambda x: rms_norm(x + 1e-6 * x.mean(), torch.ones(WIDTH), 1e-5), [x])
    index = torch.tensor([3, 1])
    with planted_fault("the batch's mean"):
        EXACT.check(leaking(index)[0], leaking(torch.arange(MOST_ROWS))[0][index])


# ------------------------------------------------------------ attention


@st.composite
def trees(draw):
    """(parent, shared, own) of up to six sequences, children of children included."""
    nodes = [(None, 0, draw(st.integers(1, 40)))]
    for number in range(1, draw(st.integers(1, 6))):
        parent = draw(st.none() | st.integers(0, number - 1))
        shared = 0 if parent is None else draw(st.integers(0, 60))
        nodes.append((parent, shared, draw(st.integers(1, 40))))
    return nodes


HEADS = st.sampled_from([(1, 1, 16), (3, 1, 32), (4, 2, 48), (7, 1, 16), (2, 2, 80), (4, 1, 20)])


def prefill(qkv, packed, pages, cuts, *, scale):
    """Each sequence from its first position, in steps that mix all sequences; outputs by (sequence, position)."""
    num_sequences = len(packed.key_rows)
    done, outputs = [0] * num_sequences, [[] for _ in range(num_sequences)]
    while any(done[b] < len(packed.key_rows[b]) for b in range(num_sequences)):
        parts = []
        for b in range(num_sequences):
            end = min(done[b] + cuts[(b + len(outputs[b])) % len(cuts)], len(packed.key_rows[b]))
            parts.append((b, np.arange(done[b], end)))
            done[b] = end
        sequence = np.concatenate([np.full(len(p), b) for b, p in parts])
        position = np.concatenate([p for _, p in parts])
        rows = np.concatenate([packed.key_rows[b][p] for b, p in parts])
        out = pages.attend([x[rows] for x in qkv], sequence, position, scale=scale)
        for b, _ in parts:
            outputs[b].append(out[sequence == b])
    return [torch.cat(out) for out in outputs]


def check_same_bits(path, nodes, heads, cuts, seed):
    packed = packed_tree(nodes, num_padding=seed % 3)
    qkv, scale = random_qkv(packed.num_rows, *heads, seed=seed), heads[2] ** -0.5
    lengths = [len(rows) for rows in packed.key_rows]
    with running_on(path):
        trained = packed_attention(*qkv, packed.layout, scale=scale)
        # Each sequence has pages of its own here, and NaN beyond what is written.
        pages = Pages(lengths, heads[1], heads[2], seed=seed)
        prefilled = prefill(qkv, packed, pages, cuts, scale=scale)
        for b, rows in enumerate(packed.key_rows):
            EXACT.check(prefilled[b], trained[rows])
            last = np.array([lengths[b] - 1])
            decoded = pages.attend([x[rows[last]] for x in qkv], last * 0 + b, last, scale=scale)
            EXACT.check(decoded, trained[rows[last]])


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=examples(40))
@given(
    nodes=trees(),
    heads=HEADS,
    cuts=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_decode_prefill_of_any_chunks_and_training_are_the_same_bits(
    path, nodes, heads, cuts, seed
):
    check_same_bits(path, nodes, heads, cuts, seed)


@pytest.mark.parametrize("path", PATHS)
def test_the_chunk_of_one_is_decode_and_a_prompt_ends_inside_a_page(path):
    check_same_bits(path, [(None, 0, 37), (0, 19, 20), (1, 33, 9)], (6, 2, 16), [1], seed=1)


def test_the_comparison_notices_a_prompt_that_is_a_token_short():
    packed, short = (
        packed_tree([(None, 0, 37), (0, 19, 9)]),
        packed_tree([(None, 0, 37), (0, 18, 9)]),
    )
    qkv = random_qkv(packed.num_rows, 3, 1, 16)
    with planted_fault("the shared prompt has a token less"):
        EXACT.check(
            packed_attention(*qkv, short.layout, scale=0.2),
            packed_attention(*qkv, packed.layout, scale=0.2),
        )
