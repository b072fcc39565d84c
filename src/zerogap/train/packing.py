"""Packs samples into micro-batches: rows to compute, which rows each attends to, and which row predicts which token.

In: samples and, for each, the tokens whose log-prob is wanted (targets). Out: ``MicroBatch`` objects of at most
``max_rows`` rows. There is no padding: sequences stand one after the other in one row dimension.

- A target at position p is predicted by the row of position p - 1, so a sample needs rows [0, last target).
- With ``share_prompts``, samples of a group share the rows of every common prefix: the prompt, earlier turns, or sampled
  tokens that happen to be equal. Such a row is computed once in forward and backward, all of these samples attend to it, and
  it predicts the next token of each; every target keeps its own weight in the loss.
- A group that does not fit is cut (``bins.cut``), and each part repeats the prefix rows that it needs. A single path cannot
  be cut: it gets a micro-batch of its own, however long it is.

Letters: T rows of a micro-batch, R targets of a micro-batch, L positions of one sample.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.errors import DataError
from zerogap.kernels import PackedLayout, build_packed_layout
from zerogap.train.bins import Bundle, cut, deal
from zerogap.train.prefix_tree import prefix_branches
from zerogap.types import Sample


@dataclass(frozen=True)
class MicroBatch:
    """The inputs of one forward (and backward) pass, on the host. ``sample_R`` indexes the packed samples."""

    token_ids_T: np.ndarray
    """int64 [T]"""
    positions_T: np.ndarray
    """int64 [T]: position in the sample, from 0."""
    layout: PackedLayout
    """Which rows each row attends to."""
    source_row_R: np.ndarray
    """int64 [R]: the row whose hidden state predicts the target; a shared row may occur many times."""
    target_R: np.ndarray
    """int64 [R]: the token id to score."""
    sample_R: np.ndarray
    """int64 [R]: the sample that the target belongs to."""
    position_R: np.ndarray
    """int64 [R]: the target's position in its sample."""
    num_rows_saved: int
    """Rows that would be added if nothing were shared."""
    num_rows_repeated: int
    """Rows that another micro-batch also computes, because their group was cut."""

    @property
    def num_rows(self) -> int:
        """T."""
        return len(self.token_ids_T)


def pack(
    samples: Sequence[Sample],
    targets: Sequence[np.ndarray],
    *,
    max_rows: int,
    share_prompts: bool = True,
) -> list[MicroBatch]:
    """Micro-batches in which every target occurs exactly once.

    Args:
        samples: any order; samples without a target are left out.
        targets: bool [L] a sample: tokens whose log-prob is wanted.
        max_rows: rows a micro-batch may have; only a single longer path has more.
        share_prompts: compute common prefixes of siblings once in each micro-batch.
    """
    rows = [s.token_ids[: _rows_needed(s, t)] for s, t in zip(samples, targets, strict=True)]
    bundles: list[Bundle] = []
    for members in _siblings(samples, rows, share_prompts=share_prompts):
        bundles += cut(prefix_branches(rows, members), max_rows)
    return [_build(samples, targets, bin_) for bin_ in deal(bundles, max_rows)]


@dataclass(frozen=True)
class UpdateBatches:
    """An update's micro-batches."""

    with_gradient: list[MicroBatch]
    """Forward and backward."""
    without_gradient: list[MicroBatch]
    """Forward only."""

    @property
    def all(self) -> list[MicroBatch]:
        """Both."""
        return self.with_gradient + self.without_gradient


def _rows_needed(sample: Sample, target_L: np.ndarray) -> int:
    if target_L.shape != sample.token_ids.shape:
        msg = f"rollout {sample.rollout_id}: a target mask of shape {target_L.shape} for {len(sample)} tokens; pass one flag a token"
        raise DataError(msg)
    if len(sample) and target_L[0]:
        msg = f"rollout {sample.rollout_id}: its first token is to be scored, but no token before it predicts it; give the sample a prompt or a begin-of-sequence token"
        raise DataError(msg)
    wanted = np.flatnonzero(target_L)
    return int(wanted[-1]) if len(wanted) else 0


def _siblings(
    samples: Sequence[Sample], rows: Sequence[np.ndarray], *, share_prompts: bool
) -> Iterable[list[int]]:
    groups: dict[object, list[int]] = {}
    for i, sample in enumerate(samples):
        if len(rows[i]):
            groups.setdefault(sample.group_id if share_prompts else i, []).append(i)
    return groups.values()


def _build(
    samples: Sequence[Sample], targets: Sequence[np.ndarray], bundles: Sequence[Bundle]
) -> MicroBatch:
    token_ids, positions, key_rows, query_start = [], [], [], []
    source_row, target, sample, position = [], [], [], []
    next_row = rows_alone = 0
    rows_L = np.zeros(0, np.int64)
    for branch in (branch for bundle in bundles for branch in bundle.branches):
        start, end = branch.num_shared, branch.num_rows
        own_rows = np.arange(next_row, next_row + end - start)
        rows_L = np.concatenate([rows_L[:start], own_rows])
        next_row += len(own_rows)
        token_ids.append(samples[branch.members[-1]].token_ids[start:end])
        positions.append(np.arange(start, end))
        key_rows.append(rows_L)
        query_start.append(start)
        for i in branch.members:
            wanted = np.flatnonzero(targets[i])
            rows_alone += int(wanted[-1])
            source_row.append(rows_L[wanted - 1])
            target.append(samples[i].token_ids[wanted])
            sample.append(np.full(len(wanted), i))
            position.append(wanted)
    return MicroBatch(
        token_ids_T=_int64(token_ids),
        positions_T=_int64(positions),
        layout=build_packed_layout(key_rows, query_start, next_row),
        source_row_R=_int64(source_row),
        target_R=_int64(target),
        sample_R=np.concatenate(sample),
        position_R=np.concatenate(position),
        num_rows_saved=rows_alone - next_row,
        num_rows_repeated=sum(bundle.num_repeated for bundle in bundles),
    )


def _int64(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.int64)
