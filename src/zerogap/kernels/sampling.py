"""Drawing tokens: logits, edits, temperature, filters, draw and log-prob, in vocabulary chunks.

The reported log-prob is over the whole vocabulary, from the same chunks and statistics as ``head.log_probs``. A draw is
an inverse CDF with one uniform number per row, so a row's token depends only on its own logits and noise. Filters apply
in the order top_k, top_p (of what top_k kept, renormalised), min_p. At a filter's edge top_k keeps all ties, and top_p
takes them by ascending id.
"""

from dataclasses import fields, replace

import torch
from torch import Tensor

from zerogap.kernels.backend import PLAIN, Compute, SamplingRows
from zerogap.kernels.choice import backend_of
from zerogap.kernels.constants import VOCAB_CHUNK
from zerogap.kernels.head import Head


class LogitsBuffer:
    """One reused allocation for [chunks][rows][VOCAB_CHUNK] logits: a new one would page-fault at every step."""

    def __init__(self, device: torch.device) -> None:
        self._storage = torch.empty(0, device=device)

    def view(self, num_chunks: int, num_rows: int) -> Tensor:
        """float32 [num_chunks, num_rows, VOCAB_CHUNK], not initialised. Valid until the next call."""
        needed = num_chunks * num_rows * VOCAB_CHUNK
        if self._storage.numel() < needed:
            self._storage = torch.empty(needed, device=self._storage.device)
        return self._storage[:needed].view(num_chunks, num_rows, VOCAB_CHUNK)


def sample_tokens(
    hidden_UD: Tensor,
    head: Head,
    rows: SamplingRows,
    *,
    buffer: LogitsBuffer | None = None,
    which_R: Tensor | None = None,
    compute: Compute = PLAIN,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw R tokens from U rows of logits.

    Args:
        hidden_UD: float32 [U, D] after the final norm.
        head: the ids to draw from.
        rows: how to make each draw.
        buffer: reused between calls by the caller; None allocates.
        which_R: int64 [R]: the row that draw r reads; no other draw may read the row of a draw with edits. None: row r.
        compute: how to compute; logits are never rounded.

    Returns:
        tokens int64 [R]; log-probs float32 [R], nats, whole vocabulary, after edits and temperature;
        kept_log_mass float32 [R]: log mass of the set to draw from (0 without a filter, the token's own log-prob if
        greedy). Rows whose logits hold NaN or infinity, or whose ids are all banned, give -1, NaN and NaN.
    """
    device = hidden_UD.device
    if which_R is None:
        which_R = torch.arange(len(hidden_UD), device=device)
    num_chunks = -(-head.vocab_limit // VOCAB_CHUNK)
    logits = (buffer or LogitsBuffer(device)).view(num_chunks, len(hidden_UD))
    columns = (getattr(rows, column.name) for column in fields(rows))
    backend = backend_of(hidden_UD, head.weight_VD, which_R, logits, *columns)
    plain = replace(compute, rounds_bf16=False)
    backend.logits(hidden_UD, head.weight_VD[: head.vocab_limit], logits, compute=plain)
    return backend.sample(logits, which_R, head.vocab_limit, rows)
