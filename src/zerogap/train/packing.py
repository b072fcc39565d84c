"""Samples cut into micro-batches: rows to compute, who sees whom, and which row predicts which token.

In: samples and, for each, the tokens whose log-prob is wanted (targets). Out: ``MicroBatch`` es of at most
``max_rows`` rows. There is no padding: sequences stand one after the other in one row dimension.

- A target at position p is predicted by the row of position p - 1, so a sample needs rows [0, last target).
- With ``share_prompts`` the tokens that all siblings of a group have in common, before the first target of any of
  them, are *one* set of rows: computed once in forward and backward, seen by every sibling. Their last row
  predicts the first token of each.
- A group that does not fit is split, and each part has the common rows once. What cannot be split further (one
  sample) gets a micro-batch of its own, however long it is.

Letters: T rows of a micro-batch, R targets of a micro-batch, L positions of one sample.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zerogap.errors import DataError
from zerogap.kernels import PackedLayout, build_packed_layout
from zerogap.types import Sample


@dataclass(frozen=True)
class MicroBatch:
    """One forward (and backward) pass. ``sample_R`` counts in the list that was packed."""

    token_ids_T: Tensor
    """int64 [T]"""
    positions_T: Tensor
    """int64 [T]: place in the sample, from 0."""
    layout: PackedLayout
    """Which rows each row attends to."""
    source_row_R: Tensor
    """int64 [R]: the row whose hidden state predicts the target; a shared last prompt row occurs many times."""
    target_R: Tensor
    """int64 [R]: the token id to score."""
    sample_R: np.ndarray
    """int64 [R]: the sample that the target belongs to."""
    position_R: np.ndarray
    """int64 [R]: the target's place in its sample."""
    num_rows_saved: int
    """Rows that would be added if no prompt were shared."""

    @property
    def num_rows(self) -> int:
        """T."""
        return len(self.token_ids_T)


@dataclass(frozen=True)
class _Bundle:
    """Samples that are computed together because they share their first ``num_shared`` rows."""

    members: tuple[int, ...]
    num_shared: int
    num_rows: int


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
        max_rows: rows a micro-batch may have; only a single longer sample has more.
        share_prompts: compute what siblings have in common once a micro-batch.
    """
    num_rows = [_rows_needed(s, t) for s, t in zip(samples, targets, strict=True)]
    bundles: list[_Bundle] = []
    for siblings in _siblings(samples, num_rows, share_prompts=share_prompts):
        num_shared = _num_shared(samples, targets, siblings)
        bundles += _split(siblings, num_rows, num_shared, max_rows)
    return [_build(samples, targets, num_rows, bin_) for bin_ in _first_fit(bundles, max_rows)]


def _rows_needed(sample: Sample, target_L: np.ndarray) -> int:
    if target_L.shape != sample.token_ids.shape:
        msg = f"rollout {sample.rollout_id}: a target mask of shape {target_L.shape} for {len(sample)} tokens; pass one flag a token"
        raise DataError(msg)
    if len(sample) and target_L[0]:
        msg = f"rollout {sample.rollout_id}: its first token is to be scored, but no token stands before it to predict it; give the sample a prompt or a begin-of-sequence token"
        raise DataError(msg)
    wanted = np.flatnonzero(target_L)
    return int(wanted[-1]) if len(wanted) else 0


def _siblings(
    samples: Sequence[Sample], num_rows: Sequence[int], *, share_prompts: bool
) -> Iterable[list[int]]:
    groups: dict[object, list[int]] = {}
    for i, sample in enumerate(samples):
        if num_rows[i]:
            groups.setdefault(sample.group_id if share_prompts else i, []).append(i)
    return groups.values()


def _num_shared(
    samples: Sequence[Sample], targets: Sequence[np.ndarray], siblings: Sequence[int]
) -> int:
    limit = min(int(targets[i].argmax()) for i in siblings)
    first_L = samples[siblings[0]].token_ids[:limit]
    differs_L = np.zeros(limit, bool)
    for i in siblings[1:]:
        differs_L |= samples[i].token_ids[:limit] != first_L
    return int(differs_L.argmax()) if differs_L.any() else limit


def _split(
    siblings: Sequence[int], num_rows: Sequence[int], num_shared: int, max_rows: int
) -> list[_Bundle]:
    parts: list[list[int]] = []
    total = 0
    for i in siblings:
        own = num_rows[i] - num_shared
        if not parts or total + own > max_rows:
            parts.append([])
            total = num_shared
        parts[-1].append(i)
        total += own
    return [
        _Bundle(tuple(p), num_shared, num_shared + sum(num_rows[i] - num_shared for i in p))
        for p in parts
    ]


def _first_fit(bundles: Sequence[_Bundle], max_rows: int) -> list[list[_Bundle]]:
    """Largest first, each into the first bin with room; ties keep their order, so the result is fixed."""
    bins: list[list[_Bundle]] = []
    room: list[int] = []
    for bundle in sorted(bundles, key=lambda bundle: -bundle.num_rows):
        fits = next((b for b, free in enumerate(room) if bundle.num_rows <= free), None)
        if fits is None:
            bins.append([])
            room.append(max_rows)
            fits = len(bins) - 1
        bins[fits].append(bundle)
        room[fits] -= bundle.num_rows
    return bins


def _build(
    samples: Sequence[Sample],
    targets: Sequence[np.ndarray],
    num_rows: Sequence[int],
    bundles: Sequence[_Bundle],
) -> MicroBatch:
    token_ids, positions, key_rows, query_start = [], [], [], []
    source_row, target, sample, position = [], [], [], []
    next_row = 0
    for bundle in bundles:
        shared_rows = np.arange(next_row, next_row + bundle.num_shared)
        for i in bundle.members:
            # The first member owns the shared rows; for the others they are keys only.
            start = 0 if i == bundle.members[0] else bundle.num_shared
            end = num_rows[i]
            own_rows = np.arange(next_row, next_row + end - start)
            rows_L = own_rows if start == 0 else np.concatenate([shared_rows, own_rows])
            next_row += len(own_rows)
            if len(own_rows):
                token_ids.append(samples[i].token_ids[start:end])
                positions.append(np.arange(start, end))
                key_rows.append(rows_L)
                query_start.append(start)
            wanted = np.flatnonzero(targets[i])
            source_row.append(rows_L[wanted - 1])
            target.append(samples[i].token_ids[wanted])
            sample.append(np.full(len(wanted), i))
            position.append(wanted)
    alone = sum(num_rows[i] for bundle in bundles for i in bundle.members)
    return MicroBatch(
        token_ids_T=_int64(token_ids),
        positions_T=_int64(positions),
        layout=build_packed_layout(key_rows, query_start, next_row),
        source_row_R=_int64(source_row),
        target_R=_int64(target),
        sample_R=np.concatenate(sample),
        position_R=np.concatenate(position),
        num_rows_saved=alone - next_row,
    )


def _int64(parts: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
