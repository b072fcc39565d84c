"""How rows draw, in one call, and which ids the filters keep, by their definitions in float64."""

from collections.abc import Sequence

import torch
from torch import Tensor

from zerogap.kernels import SamplingRows


def rows_for(
    uniform: Sequence[float] | Tensor,
    *,
    temperature: float = 1.0,
    greedy: bool = False,
    top_k: int = -1,
    top_p: float = 1.0,
    min_p: float = 0.0,
    edits: Sequence[tuple[int, float, float]] = (),
) -> SamplingRows:
    """One row a uniform number, all with the same settings and the same (id, scale, add) edits."""
    noise_R = torch.as_tensor(uniform, dtype=torch.float64)
    count = len(noise_R)
    ids, scale, add = zip(*edits, strict=True) if edits else ((), (), ())
    return SamplingRows(
        temperature_R=torch.full((count,), temperature),
        greedy_R=torch.full((count,), greedy),
        top_k_R=torch.full((count,), top_k, dtype=torch.int32),
        top_p_R=torch.full((count,), top_p),
        min_p_R=torch.full((count,), min_p),
        uniform_R=noise_R,
        edit_offsets=torch.arange(count + 1) * len(edits),
        edit_ids=torch.tensor(ids * count, dtype=torch.int32),
        edit_scale=torch.tensor(scale * count, dtype=torch.float32),
        edit_add=torch.tensor(add * count, dtype=torch.float32),
    )


def select_rows(rows: SamplingRows, index: Tensor) -> SamplingRows:
    """These rows, in this order, with their edits."""
    counts = rows.edit_offsets.diff()[index]
    edits = [
        torch.arange(int(rows.edit_offsets[r]), int(rows.edit_offsets[r + 1]))
        for r in index.tolist()
    ]
    at = torch.cat([torch.zeros(0, dtype=torch.int64), *edits])
    return SamplingRows(
        temperature_R=rows.temperature_R[index],
        greedy_R=rows.greedy_R[index],
        top_k_R=rows.top_k_R[index],
        top_p_R=rows.top_p_R[index],
        min_p_R=rows.min_p_R[index],
        uniform_R=rows.uniform_R[index],
        edit_offsets=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        edit_ids=rows.edit_ids[at],
        edit_scale=rows.edit_scale[at],
        edit_add=rows.edit_add[at],
    )


def kept_ids(
    scaled_V: Tensor, *, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """Ids that can be drawn from logits / T, ascending.

    top_k keeps all ties of the k-th; top_p the likeliest of these whose likelier ones hold less than
    top_p of their mass, ties by ascending id; min_p those of at least min_p times the likeliest's mass.
    """
    order = sorted(range(len(scaled_V)), key=lambda i: (-float(scaled_V[i]), i))
    kept = [i for i in order if scaled_V[i] > -torch.inf]
    if top_k > 0:
        edge = scaled_V[order[min(top_k, len(order)) - 1]]
        kept = [i for i in kept if scaled_V[i] >= edge]
    if top_p < 1:
        share = scaled_V[kept].softmax(0)
        kept = [
            i for i, before in zip(kept, share.cumsum(0) - share, strict=True) if before < top_p
        ]
    if min_p > 0:
        kept = [i for i in kept if (scaled_V[i] - scaled_V.max()).exp() >= min_p]
    return torch.tensor(sorted(kept))
