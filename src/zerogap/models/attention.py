"""The one difference between inference and training: where a query finds its keys and values.

The model hands queries, keys and values of one layer to an ``Attention`` and gets the mixed values back.
The engine passes one that writes into and reads from KV cache pages, the trainer one over packed rows;
everything else of the forward pass is the same code.

Letters: T packed tokens, N query heads, K key/value heads, H head dim.
"""

from typing import Protocol

import torch


class Attention(Protocol):
    """Causal attention over whatever the implementation holds for the T rows of this forward pass."""

    def __call__(
        self, layer: int, q_TNH: torch.Tensor, k_TKH: torch.Tensor, v_TKH: torch.Tensor
    ) -> torch.Tensor:
        """What each row reads.

        Called once a layer, in order of layers; again in any order when a trainer recomputes.

        Args:
            layer: index from 0.
            q_TNH: queries after rope (and query norm), not yet scaled by ``ModelConfig.attention_scale``.
            k_TKH: keys of the same rows after rope (and key norm).
            v_TKH: values of the same rows.

        Returns:
            [T, N, H]: a padding row may hold anything finite.
        """
        ...
