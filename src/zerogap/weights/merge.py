"""A low-rank update on top of a weight of low precision: what rounding loses of it, and how it comes off again.

bf16 has 8 bits: near 1 the next number is 0.008 away, and an update of 0.001 is rounded to nothing. Subtracting what was
added does not give the old weight back, since both additions round; only a kept copy does.

Letters: O and I out of and in to a projection, R rank of the update.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from zerogap.errors import WeightSyncError
from zerogap.weights.copying import describe
from zerogap.weights.digest import Rounding


@dataclass(frozen=True)
class MergeLoss:
    """What a merge did to an update."""

    lost_share: float
    """|merged - (base + delta)| / |delta|, Frobenius norms in float64: 0 for a merge without rounding, about 1 for an
    update that is below the grid. 0 for an update that is 0."""
    num_unmoved: int
    """Elements that the update should have changed and that kept the base's value."""
    num_elements: int


def low_rank_delta(b_OR: Tensor, a_RI: Tensor, *, scale: float) -> Tensor:
    """``scale * B @ A`` in fp32, [O, I]."""
    return (b_OR.float() @ a_RI.float()) * scale


def merge_delta(base: Tensor, delta: Tensor, *, rounding: Rounding) -> tuple[Tensor, MergeLoss]:
    """``rounding(base + delta)``, added in fp32, and what the rounding lost.

    Args:
        base: already on the grid of ``rounding``.
        delta: of the same shape.
        rounding: of the precision that the merged weight is held in.

    Raises:
        WeightSyncError: shapes differ.
    """
    if base.shape != delta.shape:
        msg = f"an update of {describe(delta)} cannot be merged onto a weight of {describe(base)}: adding would broadcast; give B as [out, rank] and A as [rank, in] of this projection"
        raise WeightSyncError(msg)
    merged = rounding(base.float() + delta.float()).to(base.dtype)
    lost = merged.double() - (base.double() + delta.double())
    size = delta.double().norm().item()
    return merged, MergeLoss(
        lost_share=lost.norm().item() / size if size else 0.0,
        num_unmoved=int(((merged == base) & (delta != 0)).sum()),
        num_elements=base.numel(),
    )


class MergedWeight:
    """A weight that takes updates in place, and gives its base back bit for bit. Owns the base's copy."""

    def __init__(self, weight: Tensor, *, rounding: Rounding) -> None:
        self._weight = weight.detach()
        self._base = self._weight.clone()
        self._rounding = rounding

    @torch.no_grad()
    def merge(self, delta: Tensor) -> MergeLoss:
        """The base with this update alone, whatever was merged before. Errors as ``merge_delta``."""
        merged, loss = merge_delta(self._base, delta, rounding=self._rounding)
        self._weight.copy_(merged)
        return loss

    @torch.no_grad()
    def unmerge(self) -> None:
        """The base again."""
        self._weight.copy_(self._base)
