"""Attention over pages: one function for engine decode, chunked prefill and training.

Keys live in pages of 16 slots: ``k[P, K, H, S]`` (transposed, so that 16 keys are one vector of the score kernel) and
``v[P, K, S, H]``. A row reads keys ``[0, position]`` of its sequence in absolute order into one accumulator, whatever
is computed beside it. Training first writes its packed rows to such pages; full pages of a prefix that several samples
share are written once. In C++, rows that share leading pages form one block, which loads each page once.

Source of the layout idea: paged attention (Kwon et al., 2023).
"""

import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels.choice import backend_of
from zerogap.kernels.gradients import first_order
from zerogap.kernels.layout import AttentionPlan, PackedLayout


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
        k_TKH: float32 [T, K, H].
        v_TKH: float32 [T, K, H].
        slots_W: int64 [W], the target slots: page * 16 + offset; -1 is skipped.
        k_PKHS: pages of keys, written in place.
        v_PKSH: pages of values, written in place.
        rows_W: int64 [W], the row that each slot gets; one row may fill several slots. None: slot i gets row i.
    """
    backend = backend_of(k_TKH, v_TKH, slots_W, k_PKHS, v_PKSH, rows_W)
    backend.write_kv(k_TKH, v_TKH, slots_W, k_PKHS, v_PKSH, rows_W)


def paged_attention(
    q_TNH: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, plan: AttentionPlan, *, scale: float
) -> Tensor:
    """Softmax attention of every query row over its own pages; no autograd. [T, N, H] -> [T, N, H]."""
    backend = backend_of(
        q_TNH, k_PKHS, v_PKSH, plan.page_table_BP, plan.row_sequence_T, plan.row_position_T
    )
    return backend.paged_attention(q_TNH, k_PKHS, v_PKSH, plan, scale)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend, q_TNH, k_TKH, v_TKH, layout, scale):  # noqa: ANN001, ANN205
        out, kept = backend.packed_attention(q_TNH, k_TKH, v_TKH, layout, scale)
        ctx.save_for_backward(q_TNH, k_TKH, v_TKH, out, kept)
        ctx.backend, ctx.layout, ctx.scale = backend, layout, scale
        return out

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TNH,) = grads
        grad_qkv = ctx.backend.packed_attention_backward(
            grad_TNH, *ctx.saved_tensors, ctx.layout, ctx.scale
        )
        return None, *grad_qkv, None, None


def packed_attention(
    q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layout: PackedLayout, *, scale: float
) -> Tensor:
    """Attention of packed training rows, differentiable; the same bits as ``paged_attention`` on the same keys.

    Keeps its arguments, its result and one number per row and head for the backward.
    """
    num_rows = len(layout.plan.row_position_T)
    if not len(q_TNH) == len(k_TKH) == len(v_TKH) == num_rows:
        msg = f"packed attention was given {len(q_TNH)} queries, {len(k_TKH)} keys and {len(v_TKH)} values for a layout of {num_rows} rows; pass one query, key and value per row"
        raise KernelError(msg)
    plan = layout.plan
    backend = backend_of(
        q_TNH, k_TKH, v_TKH, plan.page_table_BP, plan.row_sequence_T, plan.row_position_T,
        layout.write_row_W, layout.write_slot_W,
    )  # fmt: skip
    return _PackedAttention.apply(backend, q_TNH, k_TKH, v_TKH, layout, scale)
