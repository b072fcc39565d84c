"""Cuts a tensor into pieces of rows, so that loading needs little memory beside the model."""

from collections.abc import Iterator

import torch

_PIECE_ELEMENTS = 1 << 20
"""4 MB in fp32."""


def row_pieces(tensor: torch.Tensor, *, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Half-open ranges that cover the rows of ``tensor``, each of about a million elements.

    Args:
        tensor: [rows, ...]; may be a vector.
        multiple: the length of every range but the last is a multiple of this.
    """
    row_elements = max(1, tensor[0].numel()) if len(tensor) else 1
    step = multiple * max(1, _PIECE_ELEMENTS // (row_elements * multiple))
    for begin in range(0, len(tensor), step):
        yield begin, min(begin + step, len(tensor))
