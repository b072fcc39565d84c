"""Drawing tokens: logits, edits, temperature, filters, draw and log-prob, in vocabulary chunks.

The reported log-prob is over the whole vocabulary, from the same chunks and statistics as
``head.log_probs``. A draw is an inverse CDF with one uniform number a row, so that a row's token depends
on its own logits and its own noise only. Filters apply in the order top_k, top_p (of what top_k kept,
renormalised), min_p; ties at a filter's edge are all kept by top_k, and taken by ascending id by top_p.
"""

import itertools

import numpy as np
import torch
from torch import Tensor

from zerogap.errors import KernelError, NumericsError
from zerogap.kernels import reference
from zerogap.kernels.constants import VOCAB_CHUNK
from zerogap.kernels.head import check_vocab_limit, vocab_chunks
from zerogap.kernels.linear import row_gemm
from zerogap.kernels.native import native
from zerogap.kernels.sampling_rows import SamplingRows


class LogitsBuffer:
    """One reused allocation for [chunks][rows][VOCAB_CHUNK] logits: a fresh one is page-faulted every step."""

    def __init__(self) -> None:
        self._storage = torch.empty(0)

    def view(self, num_chunks: int, num_rows: int) -> Tensor:
        """float32 [num_chunks, num_rows, VOCAB_CHUNK]; contents are whatever was there. Valid until the next call."""
        needed = num_chunks * num_rows * VOCAB_CHUNK
        if self._storage.numel() < needed:
            self._storage = torch.empty(needed)
        return self._storage[:needed].view(num_chunks, num_rows, VOCAB_CHUNK)


def sample_tokens(
    hidden_RD: Tensor,
    head_weight_VD: Tensor,
    rows: SamplingRows,
    *,
    vocab_limit: int,
    buffer: LogitsBuffer | None = None,
    same_R: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one token a row.

    Args:
        hidden_RD: float32 [R, D] after the final norm.
        head_weight_VD: float32 [V, D].
        rows: how each row draws.
        vocab_limit: ids at or past it cannot be drawn and carry no mass.
        buffer: reused between calls by the caller; None allocates.
        same_R: int64 [R]: row r has the hidden state of row ``same_R[r]``, at or before it, whose logits it
            shares; a row with edits only its own, and with nobody. None: no two rows are known to be alike.

    Returns:
        tokens int64 [R]; log-probs float32 [R], nats, whole vocabulary, after edits and temperature;
        kept_log_mass float32 [R]: log mass of the set that could be drawn (0 without a filter, the token's
        own log-prob when greedy).

    Raises:
        NumericsError: a row whose logits hold NaN or infinity, or whose every id is banned.
    """
    check_vocab_limit(head_weight_VD, vocab_limit)
    if len(rows.edit_ids) and int(rows.edit_ids.min()) < 0:
        msg = f"edit_ids hold {int(rows.edit_ids.min())}, which is no token id; edit ids from 0 on"
        raise KernelError(msg)
    which_R = torch.arange(len(hidden_RD))
    hidden_UD = hidden_RD
    if same_R is not None:
        is_first_R = same_R == which_R
        hidden_UD = hidden_RD[is_first_R]
        which_R = (is_first_R.cumsum(0) - 1)[same_R]
    chunks = list(vocab_chunks(vocab_limit))
    logits = (buffer or LogitsBuffer()).view(len(chunks), len(hidden_UD))
    if native.handles(hidden_UD) and row_gemm.is_native(hidden_UD):
        native.head_nt(hidden_UD.contiguous(), head_weight_VD[:vocab_limit], logits)
        parts = []
    else:
        parts = _chunks_of_logits(logits, chunks, hidden_UD, head_weight_VD)
    if native.handles(hidden_UD):
        drawn = native.sample(logits, which_R, vocab_limit, rows)
    else:
        drawn = _sample_reference([part[which_R] for part in parts], rows)
    _check_finite(drawn[1])
    return drawn


def _chunks_of_logits(
    logits: Tensor, chunks: list[tuple[int, int]], hidden_RD: Tensor, head_weight_VD: Tensor
) -> list[Tensor]:
    num_rows, parts = len(hidden_RD), []
    for chunk_RC, (begin, end) in zip(logits, chunks, strict=True):
        # The last chunk is packed to its own width.
        part = chunk_RC.view(-1)[: num_rows * (end - begin)].view(num_rows, end - begin)
        parts.append(row_gemm(hidden_RD, head_weight_VD[begin:end], part))
    return parts


def _check_finite(log_prob_R: Tensor) -> None:
    if not bool(torch.isfinite(log_prob_R).all()):
        row = int((~torch.isfinite(log_prob_R)).nonzero()[0])
        msg = (
            f"row {row} of {len(log_prob_R)} has no finite log-prob: its logits hold NaN or infinity, or every id is "
            "banned; check the weights, the temperature and logit_bias"
        )
        raise NumericsError(msg)


def _sample_reference(parts: list[Tensor], rows: SamplingRows) -> tuple[Tensor, Tensor, Tensor]:
    starts = np.cumsum([0, *(part.shape[1] for part in parts)])
    logits_RV = torch.cat(parts, dim=1)
    _apply_edits_(logits_RV, rows)
    scaled_RV = logits_RV / rows.temperature_R[:, None]
    stats = None
    for begin, end in itertools.pairwise(starts):
        chunk = reference.chunk_statistics(scaled_RV[:, begin:end])
        # The empty start mirrors head.log_probs: the same merges in the same order, hence the same bits.
        empty = (
            torch.full_like(chunk[0], -torch.inf),
            torch.zeros_like(chunk[0]),
            torch.zeros_like(chunk[0]),
        )
        stats = reference.merge_statistics(stats or empty, chunk)
    assert stats is not None
    lse_R = stats[0] + stats[1].double().log().float()
    draws = [_draw_row(scaled_RV[r], lse_R[r], rows, r) for r in range(len(scaled_RV))]
    tokens = torch.tensor([token for token, _ in draws], dtype=torch.int64)
    kept = torch.tensor([mass for _, mass in draws], dtype=torch.float32)
    chosen = scaled_RV.gather(1, tokens.clamp(min=0)[:, None]).squeeze(1) - lse_R
    chosen = torch.where(tokens < 0, torch.nan, chosen)
    return tokens, chosen, torch.where(rows.greedy_R, chosen, kept)


def _apply_edits_(logits_RV: Tensor, rows: SamplingRows) -> None:
    counts = rows.edit_offsets.diff()
    row_E = torch.repeat_interleave(torch.arange(len(counts)), counts)
    ids_E = rows.edit_ids.long()
    inside = ids_E < logits_RV.shape[1]
    row_E, ids_E = row_E[inside], ids_E[inside]
    scale, add = rows.edit_scale[inside], rows.edit_add[inside]
    logit = logits_RV[row_E, ids_E]
    logits_RV[row_E, ids_E] = torch.where(logit > 0, logit / scale, logit * scale) + add


def _draw_row(scaled_V: Tensor, lse: Tensor, rows: SamplingRows, r: int) -> tuple[int, float]:
    """(token, log mass of the kept set) of one row, in float64; token -1 if it has no distribution."""
    if not lse.isfinite():
        return -1, np.nan
    if rows.greedy_R[r]:
        return int(scaled_V.argmax()), 0.0
    mass = (scaled_V - lse).double().exp()
    top_k, top_p, min_p = int(rows.top_k_R[r]), float(rows.top_p_R[r]), float(rows.min_p_R[r])
    kept = torch.ones_like(scaled_V, dtype=torch.bool)
    if 0 < top_k < len(scaled_V):
        kept &= scaled_V >= scaled_V.topk(top_k).values[-1]
    if top_p < 1:
        order = torch.sort(
            torch.where(kept, scaled_V, -torch.inf), descending=True, stable=True
        ).indices
        sorted_mass = torch.where(kept, mass, 0.0)[order]
        before = sorted_mass.cumsum(0) - sorted_mass
        kept[order[before >= top_p * sorted_mass.sum()]] = False
    if min_p > 0:
        kept &= scaled_V - scaled_V.max() >= np.log(min_p)
    kept_mass = torch.where(kept, mass, 0.0)
    cumulative = kept_mass.cumsum(0)
    target = float(rows.uniform_R[r]) * float(cumulative[-1])
    drawable = (kept_mass > 0).nonzero().squeeze(1)
    place = int(torch.searchsorted(cumulative[drawable], target, right=True))
    token = int(drawable[min(place, len(drawable) - 1)])
    is_cut = not bool(kept.all())
    return token, float(kept_mass.sum().log()) if is_cut else 0.0
