"""Attention over pages: engine decode, chunked prefill and training are this one function.

Keys live in pages of 16 slots: ``k[P, K, H, S]`` (transposed, so that 16 keys are one vector of the
score kernel) and ``v[P, K, S, H]``. A row sees keys ``[0, position]`` of its sequence and walks them in
absolute order with one accumulation, whatever is computed beside it. For training, packed rows are
first written to such pages; a prompt that several samples share is written once.

Source of the layout idea: paged attention (Kwon et al., 2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels import reference
from zerogap.kernels.constants import PAGE_SIZE
from zerogap.kernels.native import native


@dataclass(frozen=True)
class AttentionPlan:
    """Who sees what in one forward. Read-only; valid as long as the pages are."""

    page_table_BP: Tensor
    """int32 [B, pages]: pages of each sequence in absolute order; entries past its length are not read."""
    row_sequence_T: Tensor
    """int32 [T]: the sequence a query row belongs to (0 for padding rows)."""
    row_position_T: Tensor
    """int32 [T]: the row sees keys [0, position] of its sequence; -1 marks a padding row, whose output is 0."""


def write_kv(k_TKH: Tensor, v_TKH: Tensor, slots_T: Tensor, k_PKHS: Tensor, v_PKSH: Tensor) -> None:
    """Store each row's key and value at its slot (page * 16 + offset); slot -1 is skipped."""
    if native.handles(k_TKH):
        native.write_kv(k_TKH, v_TKH, slots_T, k_PKHS, v_PKSH)
        return
    kept = slots_T >= 0
    slots = slots_T[kept]
    pages, offsets = slots // PAGE_SIZE, slots % PAGE_SIZE
    k_PKHS[pages, :, :, offsets] = k_TKH[kept]
    v_PKSH[pages, :, offsets] = v_TKH[kept]


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


@dataclass(frozen=True)
class PackedLayout:
    """Packed rows of a training forward as pages. Built by ``build_packed_layout``."""

    plan: AttentionPlan
    num_pages: int
    write_row_W: Tensor
    """int64 [W]: packed row of each page slot that is filled, ascending."""
    write_slot_W: Tensor
    """int64 [W]: the slot; one row fills several slots where a shared prompt ends inside a page."""
    component_B: Tensor
    """int32 [B]: sequences that share pages, directly or through others, hence key and value gradients, have one
    number: their lowest index."""


def build_packed_layout(
    key_rows: Sequence[np.ndarray], query_start: Sequence[int], num_rows: int
) -> PackedLayout:
    """Lay sequences whose rows are packed in one [T, ...] tensor over pages.

    Args:
        key_rows: for each sequence, int [L]: the packed row that holds each position.
        query_start: for each sequence, the first position whose row is its own. Earlier rows belong to
            another sequence (a prompt computed once for its siblings).
        num_rows: T. Rows that no sequence owns are padding: they see nothing and give zeros.

    Raises:
        ValueError: a row out of range, owned twice, or read at another position than its owner's.
    """
    page_of: dict[tuple[int, bytes], int] = {}
    tables: list[list[int]] = []
    users_of_page: list[list[int]] = []
    row_sequence = np.zeros(num_rows, np.int32)
    row_position = np.full(num_rows, -1, np.int32)
    write_rows, write_slots = [], []
    for b, (rows, start) in enumerate(zip(key_rows, query_start, strict=True)):
        rows = np.asarray(rows, np.int64)
        _claim_rows(row_sequence, row_position, rows, start, b)
        table = []
        for begin in range(0, len(rows), PAGE_SIZE):
            on_page = rows[begin : begin + PAGE_SIZE]
            key = (begin, on_page.tobytes())
            page = page_of.get(key)
            if page is None:
                page = page_of[key] = len(users_of_page)
                users_of_page.append([])
                write_rows.append(on_page)
                write_slots.append(page * PAGE_SIZE + np.arange(len(on_page)))
            users_of_page[page].append(b)
            table.append(page)
        tables.append(table)
    _check_positions(row_position, key_rows)
    page_table = np.zeros((max(1, len(tables)), max([1, *map(len, tables)])), np.int32)
    for b, table in enumerate(tables):
        page_table[b, : len(table)] = table
    rows = np.concatenate(write_rows) if write_rows else np.zeros(0, np.int64)
    slots = np.concatenate(write_slots) if write_slots else np.zeros(0, np.int64)
    order = np.argsort(rows, kind="stable")
    plan = AttentionPlan(
        torch.from_numpy(page_table), torch.from_numpy(row_sequence), torch.from_numpy(row_position)
    )
    return PackedLayout(
        plan,
        len(users_of_page),
        torch.from_numpy(rows[order]),
        torch.from_numpy(slots[order].astype(np.int64)),
        torch.from_numpy(_components(users_of_page, len(key_rows))),
    )


def _components(users_of_page: list[list[int]], num_sequences: int) -> np.ndarray:
    """int32 [B]: the smallest sequence that each one is linked to by shared pages (union-find)."""
    parent = list(range(num_sequences))

    def root(b: int) -> int:
        while parent[b] != b:
            parent[b] = parent[parent[b]]
            b = parent[b]
        return b

    for users in users_of_page:
        for b in users[1:]:
            low, high = sorted((root(users[0]), root(b)))
            parent[high] = low
    return np.array([root(b) for b in range(num_sequences)], np.int32)


def _claim_rows(
    row_sequence: np.ndarray, row_position: np.ndarray, rows: np.ndarray, start: int, sequence: int
) -> None:
    own = rows[start:]
    if len(rows) and (rows.min() < 0 or rows.max() >= len(row_position)):
        msg = f"sequence {sequence} refers to packed rows {rows.min()}..{rows.max()}, but there are {len(row_position)}"
        raise ValueError(msg)
    if (row_position[own] >= 0).any() or len(np.unique(own)) != len(own):
        msg = f"sequence {sequence} owns a packed row that is owned already; every row belongs to one sequence at one position"
        raise ValueError(msg)
    row_sequence[own] = sequence
    row_position[own] = np.arange(start, len(rows), dtype=np.int32)


def _check_positions(row_position: np.ndarray, key_rows: Sequence[np.ndarray]) -> None:
    for sequence, rows in enumerate(key_rows):
        rows = np.asarray(rows, np.int64)
        wrong = np.flatnonzero(row_position[rows] != np.arange(len(rows)))
        if len(wrong):
            row, position = int(rows[wrong[0]]), int(wrong[0])
            owned = (
                f"owned at {row_position[row]}"
                if row_position[row] >= 0
                else "owned by no sequence"
            )
            msg = f"sequence {sequence} reads packed row {row} at position {position}, but that row is {owned}; share a prompt from position 0 on"
            raise ValueError(msg)


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
