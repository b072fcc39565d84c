"""A step as arrays: ids with their positions and slots, which keys each row sees, which rows draw or are scored.

The cost does not grow with sequence length or vocabulary size, except for the copy of page tables.

Duplicates (``plan``) share one row; each has its own slot to write and its own draw.

Letters: T rows (padded from 8 on), W keys and values to write (padded), B rows of the page table (one for each sequence
that computes, the rest unused), P pages of the longest sequence (padded), R draws, Q scored rows.
"""

from collections.abc import Sequence as Sequences
from dataclasses import dataclass

import numpy as np

from zerogap.engine.plan import ScheduledRows, StepPlan
from zerogap.engine.sequence import ScoreTask, Sequence
from zerogap.kernels import PAGE_SIZE, ROW_MULTIPLE

_LEAST_WIDTH = 16
"""Pages in the narrowest page table."""
_WRITE_MULTIPLE = 64
"""The slots to write are padded to a multiple of this, so that the number of duplicates makes no new shape."""


@dataclass(frozen=True)
class Rows:
    """What goes through the model; all arrays have the same order."""

    token_ids_T: np.ndarray
    """int64; T is below 8 or a multiple of 8: full tiles for the AVX-512 GEMM, and few shapes to capture."""
    row_sequence_T: np.ndarray
    """int32 index into the page table; 0 for padding rows."""
    row_position_T: np.ndarray
    """int32; -1 for padding rows."""
    write_row_W: np.ndarray
    """int64 row whose key and value are written; duplicates share a row, and each stores it on its own pages."""
    write_slot_W: np.ndarray
    """int64 slot to write to; -1 in the padding that makes W a multiple of 64."""
    page_table_BP: np.ndarray
    """int32; B is T and P a power of two: few shapes to capture. Entries that no row needs are 0."""


@dataclass(frozen=True)
class Draws:
    """Which sequences draw a token, and from which hidden states. ``build_sampling_rows`` says how they draw."""

    sequences: list[Sequence]
    """R sequences, in order."""
    row_R: np.ndarray
    """int64 row in T; -1 draws from the sequence's ``prompt_hidden_D``."""
    same_R: np.ndarray
    """int64 index of the first draw from the same hidden state; a draw with edited logits has its own index."""

    @property
    def num_distinct(self) -> int:
        """Number of logit rows that the draws need."""
        return int((self.same_R == np.arange(len(self.same_R))).sum())


@dataclass(frozen=True)
class Scores:
    """The rows that predict a token to be scored."""

    tasks: list[tuple[ScoreTask, range]]
    """Each task with its rows, in the order of the arrays below; Q rows in all."""
    row_Q: np.ndarray
    """int64 row in T"""
    target_Q: np.ndarray
    """int64 id that follows the row's token"""
    temperature_Q: np.ndarray
    """float32"""


@dataclass(frozen=True)
class Batch:
    """What a runner needs for one step. Valid until the step is committed."""

    rows: Rows
    page_copies: list[tuple[int, int]]
    """(from, to), copied before anything is written."""
    draws: Draws
    scores: Scores


def build_batch(plan: StepPlan) -> Batch:
    """The arrays of a plan: sequences in plan order, each sequence's rows in order of position."""
    first_rows = _first_rows(plan.rows)
    return Batch(
        rows=_rows(plan.rows, first_rows),
        page_copies=plan.page_copies,
        draws=_draws(plan.rows, first_rows),
        scores=_scores(plan.rows, first_rows),
    )


def _first_rows(scheduled_rows: list[ScheduledRows]) -> list[int]:
    """The row in T where each sequence's rows begin; a duplicate has the row of the sequence that computes it."""
    first_rows, end = [], 0
    for scheduled in scheduled_rows:
        first_rows.append(
            end if scheduled.duplicate_of is None else first_rows[scheduled.duplicate_of]
        )
        end += scheduled.num_rows if scheduled.duplicate_of is None else 0
    return first_rows


def _rows(scheduled_rows: list[ScheduledRows], first_rows: list[int]) -> Rows:
    computing = [s for s in scheduled_rows if s.num_rows and s.duplicate_of is None]
    start_B = np.array([scheduled.sequence.num_computed for scheduled in computing], np.int64)
    count_B = np.array([scheduled.num_rows for scheduled in computing], np.int64)
    num_rows = int(count_B.sum())
    padded = num_rows if num_rows < ROW_MULTIPLE else num_rows + -num_rows % ROW_MULTIPLE
    duplicates = [(row, s.sequence) for row, s in zip(first_rows, scheduled_rows, strict=True) if s.duplicate_of is not None]  # fmt: skip
    num_writes = num_rows + len(duplicates)
    num_writes += -num_writes % _WRITE_MULTIPLE
    rows = Rows(
        token_ids_T=np.zeros(padded, np.int64),
        row_sequence_T=np.zeros(padded, np.int32),
        row_position_T=np.full(padded, -1, np.int32),
        write_row_W=np.zeros(num_writes, np.int64),
        write_slot_W=np.full(num_writes, -1, np.int64),
        page_table_BP=_page_table(computing, padded),
    )
    if computing:
        first_B = np.cumsum(count_B) - count_B
        sequence = np.repeat(np.arange(len(computing)), count_B)
        position = np.arange(num_rows) - np.repeat(first_B - start_B, count_B)
        page = rows.page_table_BP[sequence, position // PAGE_SIZE].astype(np.int64)
        rows.token_ids_T[:num_rows] = np.concatenate([_ids(scheduled) for scheduled in computing])
        rows.row_sequence_T[:num_rows] = sequence
        rows.row_position_T[:num_rows] = position
        rows.write_row_W[:num_rows] = np.arange(num_rows)
        rows.write_slot_W[:num_rows] = page * PAGE_SIZE + position % PAGE_SIZE
    for write, (row, duplicate) in enumerate(duplicates, num_rows):
        position = duplicate.num_computed
        page = int(duplicate.pages[position // PAGE_SIZE])
        rows.write_row_W[write] = row
        rows.write_slot_W[write] = page * PAGE_SIZE + position % PAGE_SIZE
    return rows


def _ids(scheduled: ScheduledRows) -> np.ndarray:
    start = scheduled.sequence.num_computed
    return scheduled.sequence.token_ids[start : start + scheduled.num_rows]


def _page_table(computing: list[ScheduledRows], num_rows: int) -> np.ndarray:
    longest = max((scheduled.sequence.num_pages for scheduled in computing), default=1)
    width = max(_LEAST_WIDTH, 1 << (longest - 1).bit_length())
    page_table_BP = np.zeros((max(1, num_rows), width), np.int32)
    for row, scheduled in enumerate(computing):
        sequence = scheduled.sequence
        page_table_BP[row, : sequence.num_pages] = sequence.pages[: sequence.num_pages]
    return page_table_BP


def _draws(scheduled_rows: list[ScheduledRows], first_rows: list[int]) -> Draws:
    sequences, rows, same = [], [], []
    first_of: dict[object, int] = {}
    for first, scheduled in zip(first_rows, scheduled_rows, strict=True):
        if scheduled.draws:
            sequence, r = scheduled.sequence, len(rows)
            row = first + scheduled.num_rows - 1 if scheduled.num_rows else -1
            # Siblings that fork a prompt hold one tensor.
            hidden = ("row", row) if row >= 0 else ("prompt", id(sequence.prompt_hidden_D))
            has_edits = sequence.edits is not None and sequence.edits.num_ids > 0
            sequences.append(sequence)
            rows.append(row)
            same.append(r if has_edits else first_of.setdefault(hidden, r))
    return Draws(sequences, np.array(rows, np.int64), np.array(same, np.int64))


def _scores(scheduled_rows: list[ScheduledRows], first_rows: list[int]) -> Scores:
    tasks, rows, targets, temperatures = [], [], [], []
    for first, scheduled in zip(first_rows, scheduled_rows, strict=True):
        sequence, start = scheduled.sequence, scheduled.sequence.num_computed
        if sequence.score is not None:
            scored = sequence.score.rows_of_interest(start, start + scheduled.num_rows)
            tasks.append((sequence.score, scored))
            rows.append(np.array(scored, np.int64) + (first - start))
            targets.append(sequence.token_ids[scored.start + 1 : scored.stop + 1].astype(np.int64))
            temperatures.append(np.full(len(scored), sequence.score.temperature, np.float32))
    return Scores(
        tasks,
        _joined(rows, np.int64),
        _joined(targets, np.int64),
        _joined(temperatures, np.float32),
    )


def _joined(arrays: Sequences[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *arrays])
