"""How attention is cut into work: which rows share a load, and whether threads end together."""

import numpy as np
import pytest
import torch
from helpers.attention_cases import packed_tree, random_qkv
from helpers.attention_work import VALUES, WHOLE, decode_plan, read_work
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.errors import KernelError
from zerogap.kernels import PAGE_SIZE, AttentionPlan, packed_attention, paged_attention
from zerogap.kernels.graph import Arena, capture
from zerogap.kernels.native import native

pytestmark = pytest.mark.skipif(native.library is None, reason="no native kernels here")


@pytest.fixture(params=[1, 2, 3, 5])
def threads(request):
    torch.set_num_threads(request.param)
    return request.param


def siblings(num_prompts, num_siblings, shared_pages, own_pages):
    """Page tables of sequences whose prompts alternate, and the position of each one's last key."""
    tables, used = [], num_prompts * shared_pages
    for i in range(num_prompts * num_siblings):
        first = i % num_prompts * shared_pages
        own = list(range(used, used + own_pages))
        tables.append([*range(first, first + shared_pages), *own])
        used += own_pages
    length = (shared_pages + own_pages) * PAGE_SIZE
    return tables, [length - 1 - i % PAGE_SIZE for i in range(len(tables))]


def test_siblings_that_are_no_neighbours_load_a_shared_page_once():
    tables, positions = siblings(8, 8, 6, 3)
    work = read_work(decode_plan(tables, positions), group=3, num_kv_heads=3)
    assert work.num_loads() == 8 * (6 + 8 * 3)
    seen = work.pages_seen()
    assert [seen[row] for row in range(64)] == tables


def test_a_block_ends_where_its_rows_share_least():
    # 16 rows of three queries fill a block: three groups of five rows fit, and the next group stays whole.
    tables, positions = siblings(6, 5, 4, 1)
    tables = [[999, *pages] for pages in tables]  # a page that all share
    work = read_work(
        decode_plan(tables, [p + PAGE_SIZE for p in positions]), group=3, num_kv_heads=1
    )
    assert work.num_loads() == 2 + 6 * 4 + 30


def test_every_head_of_every_block_is_done_once(threads):
    tables, positions = siblings(1, 5, 20, 2)
    work = read_work(decode_plan(tables, positions), group=2, num_kv_heads=3)
    done = np.zeros((len(work.blocks), 3, 64), int)
    for kind, block, head, begin, end in work.items:
        if kind == WHOLE:
            done[block, head] += 1
        elif kind == VALUES:
            done[block, head, begin:end] += 1
    assert (done == 1).all()


MIXES = {
    "a single long sequence": ([[*range(256)]], [4095]),
    "one long among many short": (
        [[*range(256)], *([1000 + i] for i in range(40))],
        [4095, *(i % 16 for i in range(40))],
    ),
    "one prompt and its siblings": siblings(1, 16, 62, 4),
    "eight prompts and their siblings": siblings(8, 8, 6, 3),
    "seven sequences": siblings(7, 1, 3, 40),
}


@pytest.mark.parametrize("mix", MIXES)
def test_threads_end_together(mix, threads):
    tables, positions = MIXES[mix]
    work = read_work(decode_plan(tables, positions), group=3, num_kv_heads=3)
    assert work.makespan(threads, head_dim=64) < 1.25
    if threads == 2:
        assert work.makespan(threads, head_dim=64) < 1.07


def test_three_heads_on_two_threads_would_not_end_together_uncut():
    torch.set_num_threads(1)
    work = read_work(decode_plan([[*range(256)]], [4095]), group=3, num_kv_heads=3)
    assert work.makespan(2, head_dim=64) == pytest.approx(4 / 3)


def test_the_work_is_laid_out_once_for_all_layers_and_the_backward():
    packed = packed_tree([(None, 0, 40), (0, 30, 9)])
    qkv = [x.requires_grad_() for x in random_qkv(packed.num_rows, 6, 2, 32)]
    layout = packed.layout
    for _layer in range(3):
        packed_attention(*qkv, layout, scale=0.2).sum().backward()
    assert len(layout.plan.work) == 1


def test_long_plans_are_not_cut_short():
    # A plan with many steps for few rows: the array's size must not be guessed from the rows alone.
    length, num_rows = 16 * 600, 1
    plan = decode_plan([[*range(600)]] * num_rows, [length - 1])
    work = read_work(plan, group=1, num_kv_heads=1, head_dim=16)
    assert work.pages_seen()[0] == list(range(600))


@pytest.mark.parametrize(
    ("tables", "position", "sequence"),
    [
        ([[0, 1]], 2 * PAGE_SIZE, 0),  # past the table
        ([[0, 4]], PAGE_SIZE, 0),  # a page that does not exist
        ([[0, -1]], PAGE_SIZE, 0),
        ([[0, 1]], 0, 1),  # a sequence that does not exist
        ([[0, 1]], 0, -1),
    ],
)
def test_a_row_that_reads_a_page_that_does_not_exist_is_refused(tables, position, sequence):
    table = torch.tensor(tables, dtype=torch.int32)
    pages = torch.zeros(4, 1, 16, PAGE_SIZE), torch.zeros(4, 1, PAGE_SIZE, 16)
    rows = [torch.tensor([0, x], dtype=torch.int32) for x in (sequence, position)]
    with pytest.raises(
        KernelError, match=rf"row 1 reads position {position} of sequence {sequence}"
    ):
        paged_attention(torch.zeros(2, 2, 16), *pages, AttentionPlan(table, *rows), scale=1.0)
    # Entries past the last key are not read, and padding rows read nothing.
    good = AttentionPlan(
        torch.tensor([[0, 99]], dtype=torch.int32),
        torch.tensor([0, 7], dtype=torch.int32),
        torch.tensor([15, -1], dtype=torch.int32),
    )
    assert paged_attention(torch.zeros(2, 2, 16), *pages, good, scale=1.0).eq(0).all()


def test_a_captured_graph_lays_out_the_work_of_its_new_inputs():
    k, v = torch.randn(2, 8, 1, 16, PAGE_SIZE), torch.randn(2, 8, 1, PAGE_SIZE, 16)

    def attend(q, *plan):
        plan = AttentionPlan(*plan)
        for layer in range(2):
            q = paged_attention(q, k[layer], v[layer], plan, scale=0.3)
        return q

    def step(tables, positions):
        sequence = torch.arange(len(tables), dtype=torch.int32)
        columns = [torch.tensor(x, dtype=torch.int32) for x in (tables, positions)]
        return [torch.randn(len(tables), 2, 16), columns[0], sequence, columns[1]]

    first = step([[0, 1], [0, 2], [3, 4]], [20, 31, 17])
    out, graph = capture(lambda: attend(*first), first, Arena(1 << 20))
    EXACT.check(out.clone(), attend(*first))
    other = step([[5, 6], [7, 6], [5, 2]], [3, 16, -1])
    EXACT.check(graph.run(other).clone(), attend(*other))
    with planted_fault("the work of the captured step"):
        EXACT.check(graph.run([other[0], *first[1:]]).clone(), attend(*other))
    with pytest.raises(KernelError, match="zg_attention_plan refuses an input"):
        graph.run(step([[0, 1], [0, 8], [3, 4]], [20, 31, 17]))
