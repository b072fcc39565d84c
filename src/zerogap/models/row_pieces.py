"""How a tensor is cut so that what is on its way into memory stays small beside what is there."""

from collections.abc import Iterator

import torch

_PIECE_ELEMENTS = 1 << 20
"""4 MB in fp32."""


def row_pieces(tensor: torch.Tensor, *, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Half-open ranges of rows that together are all of ``tensor``, each of about a million elements.

    Args:
        tensor: [rows, ...]; a vector is cut as well.
        multiple: every range but the last is a multiple of so many rows.
    """
    row_elements = max(1, tensor[0].numel()) if len(tensor) else 1
    step = multiple * max(1, _PIECE_ELEMENTS // (row_elements * multiple))
    for begin in range(0, len(tensor), step):
        yield begin, min(begin + step, len(tensor))
