import numpy as np
import pytest
import torch
from helpers.attention_cases import Packed, Pages, packed_tree, random_qkv, softmax_attention
from helpers.kernel_paths import doubled, values_and_gradients
from helpers.planted_fault import assert_notices, planted_fault, scaled
from helpers.tolerance import EXACT, FP32_MODEL_GRADIENT, FP32_SAME_OP

from zerogap.errors import KernelError
from zerogap.kernels import (
    PAGE_SIZE,
    AttentionPlan,
    build_packed_layout,
    packed_attention,
    paged_attention,
    write_kv,
)

pytestmark = pytest.mark.usefixtures("path")

# Two groups with prompts that end inside a page, a child of a child, a lone row, and padding.
TREE = packed_tree(
    [(None, 0, 21), (0, 19, 5), (0, 19, 17), (2, 30, 4), (None, 0, 1), (None, 0, 16)],
    num_padding=3,
)
SCALE = 0.21


def attend(q, k, v, packed=TREE, scale=SCALE):
    return packed_attention(q, k, v, packed.layout, scale=scale)


def formula(q, k, v, packed=TREE, scale=SCALE):
    return softmax_attention(q, k, v, packed, scale=scale)


@pytest.mark.parametrize(
    ("heads", "head_dim"), [((3, 1), 48), ((4, 4), 16), ((8, 2), 80), ((7, 1), 20)]
)
def test_packed_attention_and_its_gradients_are_softmax_attention(heads, head_dim):
    inputs = random_qkv(TREE.num_rows, *heads, head_dim)
    values, gradients = values_and_gradients(attend, inputs)
    expected, expected_gradients = values_and_gradients(formula, doubled(inputs))
    FP32_SAME_OP.check(values, expected)
    FP32_MODEL_GRADIENT.check(gradients, expected_gradients)
    for i in range(3):
        wrong = [x.clone() for x in inputs]
        wrong[i][TREE.key_rows[0][5]] *= 1.01  # no padding row, and not its only key
        with planted_fault("one row of an input"):
            FP32_SAME_OP.check(attend(*wrong), expected[0])
        with planted_fault("one gradient"):
            FP32_MODEL_GRADIENT.check(scaled(gradients[i]), expected_gradients[i])


def test_the_formula_notices_a_masked_key_that_leaks_and_one_that_is_missing():
    packed = packed_tree([(None, 0, 20)])
    inputs = random_qkv(20, 2, 1, 16)
    out = attend(*inputs, packed)
    FP32_SAME_OP.check(out, formula(*inputs, packed))
    leaking = torch.softmax(inputs[0][18, 0] @ inputs[1][:, 0].T * SCALE, -1) @ inputs[2][:, 0]
    assert_notices("key 19 leaks into row 18", lambda: FP32_SAME_OP.check(out[18, 0], leaking))
    missing = formula(*(x[1:] for x in inputs), packed_tree([(None, 0, 19)]))
    assert_notices("key 0 is not seen", lambda: FP32_SAME_OP.check(out[1:], missing))


def test_a_shared_prompt_gives_the_bits_and_gradients_of_prompts_of_their_own():
    shared = packed_tree([(None, 0, 21), (0, 19, 5), (0, 19, 17)])
    inputs = random_qkv(shared.num_rows, 4, 2, 32)
    rows = np.concatenate(shared.key_rows)
    lengths = [len(r) for r in shared.key_rows]
    alone = packed_tree([(None, 0, length) for length in lengths])
    # Rows of a prompt are repeated; only one copy has a loss, as in the shared layout.
    weight = torch.randn(shared.num_rows, 4, 32)
    is_own = np.concatenate(
        [np.arange(n) >= start for n, start in zip(lengths, shared.query_start, strict=True)]
    )

    def loss_alone(q, k, v):
        out = packed_attention(q[rows], k[rows], v[rows], alone.layout, scale=SCALE)
        return out[is_own], (out[is_own] * weight[rows[is_own]]).sum()

    def loss_shared(q, k, v):
        out = packed_attention(q, k, v, shared.layout, scale=SCALE)
        return out[rows[is_own]], (out * weight).sum()

    ours, gradients = values_and_gradients(loss_shared, inputs)
    theirs, expected = values_and_gradients(loss_alone, inputs)
    EXACT.check(ours[0], theirs[0])
    FP32_MODEL_GRADIENT.check(gradients, expected)
    with planted_fault("one gradient"):
        FP32_MODEL_GRADIENT.check(scaled(gradients[1]), expected[1])


def test_siblings_that_lie_among_other_groups_lose_no_gradient_to_another_thread():
    # Two prompts whose siblings alternate: threads that take neighbouring rows add to the same pages.
    nodes = [(None, 0, 60), (None, 0, 60), *[(i % 2, 58, 30) for i in range(8)]]
    packed = packed_tree(nodes)
    inputs = random_qkv(packed.num_rows, 2, 1, 64)
    _, expected = values_and_gradients(lambda *x: formula(*x, packed), doubled(inputs))
    first = None
    for _ in range(8):
        _, gradients = values_and_gradients(lambda *x: attend(*x, packed), inputs)
        FP32_MODEL_GRADIENT.check(gradients, expected)
        EXACT.check(gradients, first or gradients)
        first = gradients


def test_padding_rows_give_zeros_and_get_no_gradient_even_if_they_are_nan():
    inputs = random_qkv(TREE.num_rows, 4, 2, 16)
    owned = np.concatenate([TREE.owned(b)[0] for b in range(len(TREE.key_rows))])
    padding = np.setdiff1d(np.arange(TREE.num_rows), owned)
    assert len(padding) == 3
    clean, clean_gradients = values_and_gradients(attend, inputs)
    for x in inputs:
        x[padding] = torch.nan
    (out,), gradients = values_and_gradients(attend, inputs)
    EXACT.check(out[padding], torch.zeros_like(out[padding]))
    EXACT.check(out, clean[0])
    for gradient, expected in zip(gradients, clean_gradients, strict=True):
        EXACT.check(gradient[padding], torch.zeros_like(gradient[padding]))
        EXACT.check(gradient[owned], expected[owned])


@pytest.mark.parametrize("place", [0, 7, 15, 16, 18])
@pytest.mark.parametrize("which", ["key", "value"])
def test_nan_reaches_the_rows_that_see_it_and_no_other(place, which):
    inputs = random_qkv(TREE.num_rows, 2, 1, 32)
    clean = attend(*inputs)
    row = TREE.key_rows[0][place]  # in the first group's prompt
    inputs[1 if which == "key" else 2][row, 0, 3] = torch.nan
    dirty = attend(*inputs)
    sees = np.zeros(TREE.num_rows, bool)
    for b, rows in enumerate(TREE.key_rows):
        own, positions = TREE.owned(b)
        sees[own] |= (row in rows) & (positions >= place)
    assert sees.any()
    assert not sees.all()
    EXACT.check(dirty[~sees], clean[~sees])
    reached = dirty[sees] if which == "key" else dirty[sees][..., 3]
    assert reached.isnan().all()


def test_infinite_keys_never_end_as_a_finite_number():
    q, k, v = random_qkv(4, 1, 1, 16)
    packed = packed_tree([(None, 0, 4)])
    k[0] = -torch.inf * q[0].sign()
    assert attend(q, k, v, packed)[0].isnan().all()  # the only key has weight exp(-inf): no mass


def test_strided_keys_and_values_are_read_rightly_forward_and_backward():
    inputs = random_qkv(TREE.num_rows, 4, 2, 16)
    transposed = [x.transpose(0, 1).contiguous() for x in inputs[1:]]

    def strided(q, k, v):
        return attend(q, k.transpose(0, 1), v.transpose(0, 1))

    values, gradients = values_and_gradients(strided, [inputs[0], *transposed])
    expected, expected_gradients = values_and_gradients(attend, inputs)
    EXACT.check(values, expected)
    EXACT.check([gradients[0], *(g.transpose(0, 1) for g in gradients[1:])], expected_gradients)


def test_no_rows_and_no_sequences_give_nothing():
    empty = Packed([], [], 0)
    assert attend(*random_qkv(0, 2, 1, 16), empty).shape == (0, 2, 16)
    none = np.zeros(0, np.int64)
    assert Pages([20], 1, 16).attend(random_qkv(0, 2, 1, 16), none, none, scale=1.0).shape == (
        0,
        2,
        16,
    )


def test_a_step_of_padding_alone_gives_zeros():
    pages = Pages([16], 1, 16)
    out = pages.attend(
        random_qkv(3, 2, 1, 16), np.zeros(3, np.int64), np.full(3, -1, np.int64), scale=1.0
    )
    EXACT.check(out, torch.zeros(3, 2, 16))
    assert pages.k_PKHS.isnan().all()


def test_a_key_and_a_value_go_to_their_slot_and_nowhere_else():
    _, k, v = random_qkv(3, 2, 2, 16)
    k_PKHS, v_PKSH = torch.zeros(4, 2, 16, PAGE_SIZE), torch.zeros(4, 2, PAGE_SIZE, 16)
    write_kv(k, v, torch.tensor([3 * PAGE_SIZE + 5, -1, 0]), k_PKHS, v_PKSH)
    expected_k, expected_v = torch.zeros_like(k_PKHS), torch.zeros_like(v_PKSH)
    expected_k[3, :, :, 5], expected_v[3, :, 5] = k[0], v[0]
    expected_k[0, :, :, 0], expected_v[0, :, 0] = k[2], v[2]
    EXACT.check([k_PKHS, v_PKSH], [expected_k, expected_v])


def test_siblings_share_whole_pages_and_copy_the_page_where_their_prompt_ends():
    prompt = 2 * PAGE_SIZE + 3
    layout = packed_tree([(None, 0, prompt + 4), (0, prompt, 4), (0, prompt, 4)]).layout
    table = layout.plan.page_table_BP
    assert table.shape == (3, 3)
    assert len(set(table[:, 0].tolist())) == len(set(table[:, 1].tolist())) == 1
    assert len(set(table[:, 2].tolist())) == 3
    assert layout.num_pages == 5
    slots_of_row = torch.bincount(layout.write_row_W)
    assert slots_of_row[: 2 * PAGE_SIZE].tolist() == [1] * 2 * PAGE_SIZE
    assert slots_of_row[2 * PAGE_SIZE : prompt].tolist() == [3] * 3


def test_rows_at_the_same_place_of_other_sequences_are_not_taken_for_a_shared_page():
    first, second = np.arange(20), np.arange(20, 40)
    layout = build_packed_layout([first, second], [0, 0], 40)
    assert layout.num_pages == 4


@pytest.mark.parametrize(
    ("key_rows", "query_start", "message"),
    [
        ([[0, 1, 2], [2, 3]], [0, 0], "sequence 1 owns a packed row that is owned already"),
        ([[0, 1, 1]], [0], "sequence 0 owns a packed row that is owned already"),
        ([[0, 1, 4]], [0], r"sequence 0 refers to packed rows 0\.\.4, but there are 4"),
        ([[-1, 0]], [0], r"sequence 0 refers to packed rows -1\.\.0"),
        ([[0, 1], [2, 3]], [0, 1], "reads packed row 2 at position 0, but that row is owned by no"),
        (
            [[0, 1, 2], [1, 3]],
            [0, 1],
            "reads packed row 1 at position 0, but that row is owned at 1",
        ),
    ],
)
def test_a_layout_that_cannot_be_right_is_refused(key_rows, query_start, message):
    with pytest.raises(ValueError, match=message):
        build_packed_layout([np.array(rows) for rows in key_rows], query_start, 4)


def test_a_layout_for_another_number_of_rows_is_refused():
    q, k, v = random_qkv(4, 2, 1, 16)
    layout = packed_tree([(None, 0, 5)]).layout
    with pytest.raises(KernelError, match="4 queries, 4 keys and 4 values for a layout of 5 rows"):
        packed_attention(q, k, v, layout, scale=1.0)


def test_tensors_that_the_kernel_would_misread_are_refused(path):
    if path != "cpu":
        pytest.skip("torch checks and indexes by itself")
    q, k, v = random_qkv(4, 2, 1, 16)
    pages = torch.zeros(1, 1, 16, 16)
    rows = torch.zeros(4, dtype=torch.int32)
    plan = AttentionPlan(torch.zeros(1, 1, dtype=torch.int32), rows, rows)
    paged_attention(q, pages, pages, plan, scale=1.0)
    with pytest.raises(KernelError, match=r"shape \(4, 2, 16\), strides \(16, 64, 1\)"):
        paged_attention(
            q.transpose(0, 1).contiguous().transpose(0, 1), pages, pages, plan, scale=1.0
        )
    with pytest.raises(KernelError, match=r"float64 tensor of shape \(1, 1, 16, 16\)"):
        paged_attention(q, pages.double(), pages, plan, scale=1.0)
    with pytest.raises(KernelError, match=r"int32 tensor of shape \(4,\).*shape \(3,\)"):
        paged_attention(q[:3], pages, pages, plan, scale=1.0)
    with pytest.raises(KernelError, match=r"int32 tensor of shape \(4,\).*int64"):
        write_kv(k, v, rows, pages, pages)
    with pytest.raises(KernelError, match=r"shape \(4, 1, 16\).*shape \(3, 1, 16\)"):
        write_kv(k[:3], v, rows.long(), pages, pages)
