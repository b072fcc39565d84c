"""Which row sees which keys: the plan of a forward pass over pages, and packed training rows laid out as pages.

T packed rows, B sequences, L positions of one sequence, W filled page slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from zerogap.kernels.constants import PAGE_SIZE


@dataclass(frozen=True)
class AttentionPlan:
    """Which row sees which keys in one forward pass. Read-only; valid as long as the pages are.

    One plan serves all layers: the first layer computes what depends on the plan alone.
    """

    page_table_BP: Tensor
    """int32 [B, pages]: pages of each sequence in absolute order; entries past its length are not read."""
    row_sequence_T: Tensor
    """int32 [T]: the sequence that a query row belongs to (0 for padding rows)."""
    row_position_T: Tensor
    """int32 [T]: the row sees keys [0, position] of its sequence; -1 marks a padding row, whose output is 0."""
    num_keys: int | None = None
    """The most keys that any row sees, if known without waiting for the device; None: as many as the table holds."""
    work: dict[tuple[int, ...], Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Private to the C++ kernels: how they cut this plan into work, by number of heads, pages and threads."""

    @property
    def num_pages_read(self) -> int:
        """The most columns of the table that any row reads."""
        width = self.page_table_BP.shape[1]
        return width if self.num_keys is None else -(-self.num_keys // PAGE_SIZE)


@dataclass(frozen=True)
class PackedLayout:
    """Packed rows of a training forward as pages. Built by ``build_packed_layout``."""

    plan: AttentionPlan
    num_pages: int
    write_row_W: Tensor
    """int64 [W]: the packed row of each filled page slot, ascending."""
    write_slot_W: Tensor
    """int64 [W]: the slot; a row fills several slots where a shared prefix ends inside a page."""

    def to(self, device: torch.device) -> "PackedLayout":
        """The same layout on a device; itself if it is there already."""
        plan = self.plan
        if plan.page_table_BP.device == device:
            return self
        columns = plan.page_table_BP, plan.row_sequence_T, plan.row_position_T
        return PackedLayout(
            AttentionPlan(*(x.to(device) for x in columns), num_keys=plan.num_keys),
            self.num_pages,
            self.write_row_W.to(device),
            self.write_slot_W.to(device),
        )


def build_packed_layout(
    key_rows: Sequence[np.ndarray], query_start: Sequence[int], num_rows: int
) -> PackedLayout:
    """Lay out sequences as pages; their rows are packed in one [T, ...] tensor.

    Args:
        key_rows: for each sequence, int [L]: the packed row that holds each position.
        query_start: for each sequence, the first position whose row it owns. Earlier rows belong to
            another sequence (a shared prefix, computed once).
        num_rows: T. Rows without an owner are padding: they see no key, and their output is 0.

    Raises:
        ValueError: a row is out of range, has two owners, or is read at another position than its owner's.
    """
    page_of: dict[tuple[int, bytes], int] = {}
    tables: list[list[int]] = []
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
                page = page_of[key] = len(page_of)
                write_rows.append(on_page)
                write_slots.append(page * PAGE_SIZE + np.arange(len(on_page)))
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
        torch.from_numpy(page_table),
        torch.from_numpy(row_sequence),
        torch.from_numpy(row_position),
        num_keys=int(row_position.max(initial=-1)) + 1,
    )
    return PackedLayout(
        plan,
        len(page_of),
        torch.from_numpy(rows[order]),
        torch.from_numpy(slots[order].astype(np.int64)),
    )


def _claim_rows(
    row_sequence: np.ndarray, row_position: np.ndarray, rows: np.ndarray, start: int, sequence: int
) -> None:
    own = rows[start:]
    if len(rows) and (rows.min() < 0 or rows.max() >= len(row_position)):
        msg = f"sequence {sequence} refers to packed rows {rows.min()}..{rows.max()}, but there are {len(row_position)}; pass rows in [0, num_rows)"
        raise ValueError(msg)
    if (row_position[own] >= 0).any() or len(np.unique(own)) != len(own):
        msg = f"sequence {sequence} owns a packed row that is owned already; give every row one owner and one position"
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
            msg = f"sequence {sequence} reads packed row {row} at position {position}, but that row is {owned}; share prefixes only, from position 0 on"
            raise ValueError(msg)
