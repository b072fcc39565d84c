"""Sequences that share prompts, their packed rows, their pages, and attention by its formula in float64.

Letters: T packed rows, N query heads, K key/value heads, H head dim, P pages, S slots, B sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zerogap.kernels import (
    PAGE_SIZE,
    AttentionPlan,
    PackedLayout,
    build_packed_layout,
    paged_attention,
    write_kv,
)


@dataclass(frozen=True)
class Packed:
    """Rows of several sequences in one tensor."""

    key_rows: list[np.ndarray]
    query_start: list[int]
    num_rows: int

    @property
    def layout(self) -> PackedLayout:
        return build_packed_layout(self.key_rows, self.query_start, self.num_rows)

    def owned(self, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """(rows, positions) that belong to a sequence."""
        start, rows = self.query_start[sequence], self.key_rows[sequence]
        return rows[start:], np.arange(start, len(rows))


def packed_tree(nodes: Sequence[tuple[int | None, int, int]], *, num_padding: int = 0) -> Packed:
    """Each node is (parent, shared, own): its first ``shared`` positions are the parent's, ``own`` follow.

    ``shared`` is cut to the parent's length. Padding rows, which no sequence owns, stand between nodes and
    at the end.
    """
    key_rows: list[np.ndarray] = []
    query_start: list[int] = []
    num_rows = 0
    for number, (parent, shared, own) in enumerate(nodes):
        before = np.zeros(0, np.int64) if parent is None else key_rows[parent][:shared]
        num_rows += number < num_padding
        key_rows.append(np.concatenate([before, np.arange(num_rows, num_rows + own)]))
        query_start.append(len(before))
        num_rows += own
    return Packed(key_rows, query_start, num_rows + max(0, num_padding - len(nodes)))


def random_qkv(
    num_rows: int, num_heads: int, num_kv_heads: int, head_dim: int, *, seed: int = 0
) -> list[Tensor]:
    """q [T, N, H], k and v [T, K, H], spread widely enough that softmax is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((num_heads, 1.5), (num_kv_heads, 1.5), (num_kv_heads, 1.0))
    return [s * torch.randn(num_rows, n, head_dim, generator=generator) for n, s in shapes]


def softmax_attention(
    q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, packed: Packed, *, scale: float
) -> Tensor:
    """softmax(q k^T * scale) v, sequence after sequence, in the dtype given; padding rows are 0."""
    group = q_TNH.shape[1] // k_TKH.shape[1]
    out = torch.zeros_like(q_TNH)
    for sequence, rows in enumerate(packed.key_rows):
        own, positions = packed.owned(sequence)
        k_NLH = k_TKH[rows].repeat_interleave(group, dim=1).transpose(0, 1)
        v_NLH = v_TKH[rows].repeat_interleave(group, dim=1).transpose(0, 1)
        score_NQL = q_TNH[own].transpose(0, 1) @ k_NLH.transpose(1, 2) * scale
        is_hidden_QL = torch.arange(len(rows))[None, :] > torch.from_numpy(positions)[:, None]
        weight_NQL = score_NQL.masked_fill(is_hidden_QL, -torch.inf).softmax(-1)
        out = out.index_put((torch.from_numpy(own),), (weight_NQL @ v_NLH).transpose(0, 1))
    return out


class Pages:
    """A KV cache as the engine has it: pages in no order, NaN wherever nothing was written."""

    def __init__(
        self, lengths: Sequence[int], num_kv_heads: int, head_dim: int, *, seed: int = 0
    ) -> None:
        counts = [-(-length // PAGE_SIZE) for length in lengths]
        shuffled = np.random.default_rng(seed).permutation(sum(counts) + 2).astype(np.int32)
        # Entries past a sequence's last page are another's page: they must not be read.
        self.table_BP = np.full((len(lengths), max([1, *counts])), shuffled[-1], np.int32)
        used = 0
        for b, count in enumerate(counts):
            self.table_BP[b, :count] = shuffled[used : used + count]
            used += count
        self.k_PKHS = torch.full((len(shuffled), num_kv_heads, head_dim, PAGE_SIZE), torch.nan)
        self.v_PKSH = torch.full((len(shuffled), num_kv_heads, PAGE_SIZE, head_dim), torch.nan)

    def slots(self, sequence: np.ndarray, position: np.ndarray) -> Tensor:
        """int64 slot of each (sequence, position); position -1 has slot -1."""
        page = self.table_BP[sequence, np.maximum(position, 0) // PAGE_SIZE].astype(np.int64)
        return torch.from_numpy(np.where(position < 0, -1, page * PAGE_SIZE + position % PAGE_SIZE))

    def attend(
        self, qkv: Sequence[Tensor], sequence: np.ndarray, position: np.ndarray, *, scale: float
    ) -> Tensor:
        """One engine step: write the rows' keys and values, then attention of the rows."""
        q, k, v = qkv
        write_kv(k, v, self.slots(sequence, position), self.k_PKHS, self.v_PKSH)
        plan = AttentionPlan(
            torch.from_numpy(self.table_BP),
            torch.from_numpy(sequence.astype(np.int32)),
            torch.from_numpy(position.astype(np.int32)),
        )
        return paged_attention(q, self.k_PKHS, self.v_PKSH, plan, scale=scale)
