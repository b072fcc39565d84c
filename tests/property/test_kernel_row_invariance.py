"""A row's bits depend on that row alone: for every kernel, any batch, any place, on both paths.

For attention a row is a position of a sequence: alone in decode, in a prefill of any chunks among other
sequences' rows, and in packed training rows with prompts shared in any tree.
"""

import functools

import numpy as np
import pytest
import torch
from helpers.attention_cases import Pages, packed_tree, random_qkv
from helpers.every_kernel import KernelCase, every_kernel
from helpers.examples import examples
from helpers.kernel_paths import PATHS, running_on
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st

from zerogap.kernels import packed_attention, rms_norm, swiglu

MOST_ROWS = 24
KERNELS = every_kernel(MOST_ROWS)


@functools.cache
def whole_batch(path, name):
    """Outputs of all rows at once."""
    with running_on(path):
        return KERNELS[name].of_rows(torch.arange(MOST_ROWS))


INDEX = st.lists(st.integers(0, MOST_ROWS - 1), min_size=1, max_size=MOST_ROWS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", KERNELS)
@settings(max_examples=examples(10))
@given(index=INDEX)
def test_a_row_has_its_bits_in_any_batch_at_any_place(path, name, index):
    kernel, index = KERNELS[name], torch.tensor(index)
    with running_on(path):
        EXACT.check(kernel.of_rows(index), [out[index] for out in whole_batch(path, name)])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_row_has_its_bits_alone(path, name):
    kernel = KERNELS[name]
    with running_on(path):
        for row in (0, 13, MOST_ROWS - 1):
            alone = torch.tensor([row])
            EXACT.check(kernel.of_rows(alone), [out[alone] for out in whole_batch(path, name)])


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
    x = torch.randn(MOST_ROWS, 52)
    leaking = KernelCase(lambda x: rms_norm(x + 1e-6 * x.mean(), torch.ones(52), 1e-5), [x])
    index = torch.tensor([3, 1])
    with planted_fault("the batch's mean"):
        whole = leaking.of_rows(torch.arange(MOST_ROWS))[0]
        EXACT.check(leaking.of_rows(index)[0], whole[index])


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
