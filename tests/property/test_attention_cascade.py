"""Rows that share pages are computed together, and keep the bits of a row that is computed alone."""

import numpy as np
import pytest
import torch
from helpers.attention_cases import packed_tree, random_qkv
from helpers.attention_work import work_of
from helpers.examples import examples
from helpers.kernel_paths import PATHS, running_on, values_and_gradients
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st

from zerogap.kernels import PAGE_SIZE, AttentionPlan, packed_attention, paged_attention
from zerogap.kernels.native import native

NUM_PAGES = 40
HEADS = st.sampled_from([(3, 1, 32), (9, 3, 64), (7, 1, 16), (2, 2, 80), (8, 1, 48)])


@st.composite
def page_tables(draw):
    """Tables that branch from each other anywhere, and pages that occur at other depths or twice in a table."""
    pages = st.lists(st.integers(0, NUM_PAGES - 1), max_size=9)
    tables = [[*draw(pages), 0]]
    for number in range(1, draw(st.integers(1, 12))):
        parent = tables[draw(st.integers(0, number - 1))]
        tables.append(parent[: draw(st.integers(0, len(parent)))] + draw(pages) + [number])
    return tables


@st.composite
def steps(draw):
    """(tables, sequence of each row, position of each row): chunks, single rows and padding in any order."""
    tables = draw(page_tables())
    sequence, position = [], []
    for _run in range(draw(st.integers(1, 14))):
        b = draw(st.integers(0, len(tables) - 1))
        last = len(tables[b]) * PAGE_SIZE - 1
        begin = draw(st.integers(-1, last))
        count = draw(st.integers(1, 20)) if begin >= 0 else 1
        end = min(begin + count, last + 1)
        sequence += [b] * (end - begin)
        position += range(begin, end)
    return tables, np.array(sequence, np.int32), np.array(position, np.int32)


def as_table(tables):
    table = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for b, pages in enumerate(tables):
        table[b, : len(pages)] = pages
    return torch.from_numpy(table)


def attend(q, pages, tables, sequence, position):
    plan = AttentionPlan(as_table(tables), torch.from_numpy(sequence), torch.from_numpy(position))
    return paged_attention(q, *pages, plan, scale=0.2)


def random_step(heads, num_rows, seed):
    """Queries of the rows, and pages of keys and values."""
    q, k, v = random_qkv(NUM_PAGES * PAGE_SIZE, *heads, seed=seed)
    k_PKHS = k.view(NUM_PAGES, PAGE_SIZE, *k.shape[1:]).permute(0, 2, 3, 1).contiguous()
    v_PKSH = v.view(NUM_PAGES, PAGE_SIZE, *v.shape[1:]).transpose(1, 2).contiguous()
    return torch.cat([q, q])[:num_rows].contiguous(), (k_PKHS, v_PKSH)


@pytest.fixture
def on_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "path", [PATHS[0], *(pytest.param(path, marks=pytest.mark.slow) for path in PATHS[1:])]
)
@settings(max_examples=examples(25))
@given(step=steps(), heads=HEADS, threads=st.integers(1, 5), seed=st.integers(0, 9))
def test_a_row_has_the_bits_it_has_alone(path, step, heads, threads, seed):
    tables, sequence, position = step
    q, pages = random_step(heads, len(sequence), seed)
    before = torch.get_num_threads()
    with running_on(path):
        alone = [
            attend(q[t : t + 1], pages, tables, sequence[t : t + 1], position[t : t + 1])
            for t in range(len(q))
        ]
        torch.set_num_threads(threads)
        try:
            together = attend(q, pages, tables, sequence, position)
        finally:
            torch.set_num_threads(before)
    EXACT.check(together, torch.cat(alone))


def test_the_comparison_notices_a_sibling_that_reads_the_page_of_another():
    tables = [[0, 1, 2], [0, 1, 3]]
    q, pages = random_step((3, 1, 32), 2, 0)
    rows = np.arange(2, dtype=np.int32), np.array([40, 41], np.int32)
    ours = attend(q, pages, tables, *rows)
    EXACT.check(ours[1:], attend(q[1:], pages, tables, rows[0][1:], rows[1][1:]))
    with planted_fault("both take the first one's page"):
        EXACT.check(attend(q, pages, [tables[0]] * 2, *rows), ours)


TREES = {
    "a prompt and its siblings": [(None, 0, 70), *[(0, 66, 40 - 3 * i) for i in range(8)]],
    "siblings among other groups": [
        (None, 0, 60), (None, 0, 60), *[(i % 2, 58, 30) for i in range(8)],
    ],
    "a single sequence": [(None, 0, 300)],
    "a child of a child": [(None, 0, 50), (0, 40, 40), (1, 70, 30), (1, 70, 30), (0, 33, 5)],
}  # fmt: skip


@pytest.mark.skipif(native.library is None, reason="no native kernels here")
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 1, 32)])
def test_gradients_have_the_same_bits_on_any_number_of_threads(tree, heads, on_threads):
    packed = packed_tree(TREES[tree], num_padding=2)
    inputs = random_qkv(packed.num_rows, *heads)
    layout = packed.layout

    def attend_packed(*qkv):
        return packed_attention(*qkv, layout, scale=0.15)

    on_threads(1)
    expected = values_and_gradients(attend_packed, inputs)
    for threads in (2, 3, 8):
        on_threads(threads)
        for _attempt in range(3):  # threads meet at other moments each time
            EXACT.check(values_and_gradients(attend_packed, inputs), expected)
    on_threads(1)
    reverse_blocks(layout)
    with planted_fault("blocks add to a page in another order"):
        EXACT.check(values_and_gradients(attend_packed, inputs)[1], expected[1])


def reverse_blocks(layout):
    """One thread's last block of the work becomes its first, and the first to add to its pages."""
    for (*_shape, threads, _is_recording), array in layout.plan.work.items():
        if threads > 1:
            continue
        work = work_of(array)
        work.blocks[:] = work.blocks[::-1].copy()
        count = np.zeros(layout.num_pages, int)
        for block in work.blocks:
            for step in work.steps[block[2] : block[3]]:
                for p in range(step[3]):
                    step[8 + p] = count[step[4 + p]]
                    count[step[4 + p]] += 1
