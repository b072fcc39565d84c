"""Attention over pages: engine decode, chunked prefill and training are this one function.

Keys live in pages of 16 slots: ``k[P, K, H, S]`` (transposed, so that 16 keys are one vector of the
score kernel) and ``v[P, K, S, H]``. A row sees keys ``[0, position]`` of its sequence and walks them in
absolute order with one accumulation, whatever is computed beside it. For training, packed rows are
first written to such pages; full pages of a prefix that several samples share are written once. In C++,
rows that share leading pages are computed as one block, so that a page is loaded once for all of them.

Source of the layout idea: paged attention (Kwon et al., 2023).
"""

import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels import reference
from zerogap.kernels.constants import PAGE_SIZE
from zerogap.kernels.gradients import first_order
from zerogap.kernels.layout import AttentionPlan, PackedLayout
from zerogap.kernels.native import native


def write_kv(
    k_TKH: Tensor,
    v_TKH: Tensor,
    slots_W: Tensor,
    k_PKHS: Tensor,
    v_PKSH: Tensor,
    rows_W: Tensor | None = None,
) -> None:
    """Store keys and values on pages.

    Args:
        k_TKH: float32 [T, K, H]; v_TKH alike.
        v_TKH: see k_TKH.
        slots_W: int64 [W] where to: page * 16 + offset; -1 is skipped.
        k_PKHS: written in place; v_PKSH alike.
        v_PKSH: see k_PKHS.
        rows_W: int64 [W] the row that goes there, which may go to several; None takes row i for slot i.
    """
    if native.handles(k_TKH):
        native.write_kv(k_TKH, v_TKH, slots_W, k_PKHS, v_PKSH, rows_W)
        return
    kept = slots_W >= 0
    slots = slots_W[kept]
    pages, offsets = slots // PAGE_SIZE, slots % PAGE_SIZE
    rows = kept if rows_W is None else rows_W[kept]
    k_PKHS[pages, :, :, offsets] = k_TKH[rows]
    v_PKSH[pages, :, offsets] = v_TKH[rows]


def paged_attention(
    q_TNH: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, plan: AttentionPlan, *, scale: float
) -> Tensor:
    """Softmax attention of every query row over its own pages; no autograd. [T, N, H] -> [T, N, H]."""
    if native.handles(q_TNH) and native.handles_head_dim(q_TNH.shape[-1]):
        return native.paged_attention(q_TNH, k_PKHS, v_PKSH, plan, scale)[0]
    return reference.attention_over_pages(
        q_TNH,
        k_PKHS,
        v_PKSH,
        plan.page_table_BP,
        plan.row_sequence_T,
        plan.row_position_T,
        scale=scale,
    )


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q_TNH, k_TKH, v_TKH, layout: PackedLayout, scale: float) -> Tensor:  # noqa: ANN001
        k_pages, v_pages = native.fill_pages(k_TKH, v_TKH, layout)
        out, lse = native.paged_attention(
            q_TNH, k_pages, v_pages, layout.plan, scale, with_lse=True
        )
        ctx.save_for_backward(q_TNH, k_TKH, v_TKH, out, lse)
        ctx.layout, ctx.scale = layout, scale
        return out

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TNH,) = grads
        q, k, v, out, lse = ctx.saved_tensors
        return (
            *native.packed_attention_backward(grad_TNH, q, k, v, out, lse, ctx.layout, ctx.scale),
            None,
            None,
        )


def packed_attention(
    q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layout: PackedLayout, *, scale: float
) -> Tensor:
    """Attention of packed training rows, differentiable; the same bits as ``paged_attention`` on the same keys."""
    num_rows = len(layout.plan.row_position_T)
    if not len(q_TNH) == len(k_TKH) == len(v_TKH) == num_rows:
        msg = f"packed attention was given {len(q_TNH)} queries, {len(k_TKH)} keys and {len(v_TKH)} values for a layout of {num_rows} rows; pass one of each a row"
        raise KernelError(msg)
    if native.handles(q_TNH) and native.handles_head_dim(q_TNH.shape[-1]):
        return _PackedAttention.apply(q_TNH, k_TKH, v_TKH, layout, scale)
    k_pages, v_pages = _reference_pages(k_TKH, v_TKH, layout)
    return reference.attention_over_pages(
        q_TNH,
        k_pages,
        v_pages,
        layout.plan.page_table_BP,
        layout.plan.row_sequence_T,
        layout.plan.row_position_T,
        scale=scale,
    )


def _reference_pages(k_TKH: Tensor, v_TKH: Tensor, layout: PackedLayout) -> tuple[Tensor, Tensor]:
    num_kv_heads, head_dim = k_TKH.shape[1:]
    shape = (layout.num_pages * PAGE_SIZE, num_kv_heads, head_dim)
    pages = []
    for rows_TKH in (k_TKH, v_TKH):
        written = rows_TKH.index_select(0, layout.write_row_W)
        slots = rows_TKH.new_zeros(shape).index_copy(0, layout.write_slot_W, written)
        pages.append(slots.view(layout.num_pages, PAGE_SIZE, num_kv_heads, head_dim))
    return pages[0].permute(0, 2, 3, 1), pages[1].transpose(1, 2)
