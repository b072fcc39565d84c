"""The trainer's attention: packed rows of one micro-batch."""

from dataclasses import dataclass

from torch import Tensor

from zerogap.kernels import PackedLayout, packed_attention


@dataclass(frozen=True)
class PackedAttention:
    """A ``models.Attention`` over rows that are all in this forward pass; keeps nothing between layers."""

    layout: PackedLayout
    scale: float

    def __call__(self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> Tensor:
        """What each row reads, [T, N, H]."""
        return packed_attention(q_TNH, k_TKH, v_TKH, self.layout, scale=self.scale)
