"""The only difference between inference and training: where a query finds its keys and values.

The model passes queries, keys and values of one layer to an ``Attention`` and gets the attention output back. The
engine's implementation writes and reads KV cache pages, the trainer's works on packed rows; the rest of the forward
pass is the same code.

Letters: T packed tokens, N query heads, K key/value heads, H head dim.
"""

from typing import Protocol

import torch


class Attention(Protocol):
    """Causal attention for the T rows of a forward pass."""

    def __call__(
        self, layer: int, q_TNH: torch.Tensor, k_TKH: torch.Tensor, v_TKH: torch.Tensor
    ) -> torch.Tensor:
        """The attention output of each row.

        Called once per layer, in order; again, in any order, when the trainer recomputes activations.

        Args:
            layer: index from 0.
            q_TNH: queries after rope (and query norm), not yet scaled by ``ModelConfig.attention_scale``.
            k_TKH: keys of the same rows after rope (and key norm).
            v_TKH: values of the same rows.

        Returns:
            [T, N, H]; a padding row may hold any finite values.
        """
        ...
