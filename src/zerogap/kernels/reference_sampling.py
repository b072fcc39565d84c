"""The sampler in plain torch, all rows at once and without waiting for the device: the reference for the C++ sampler.

Letters: R draws, V vocabulary, E edits.
"""

import torch
from torch import Tensor

from zerogap.kernels.backend import SamplingRows


def draw(logits_RV: Tensor, lse_R: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor, Tensor]:
    """See ``sampling.sample_tokens``; ``lse_R`` is the log-sum-exp of the edited logits / T."""
    scaled_RV = logits_RV / rows.temperature_R[:, None]
    drawn_R, kept_mass_R = _inverse_cdf(scaled_RV, lse_R, rows)
    token_R = torch.where(
        rows.greedy_R, _first(scaled_RV == scaled_RV.amax(1, keepdim=True)), drawn_R
    )
    has_distribution_R = lse_R.isfinite()
    token_R = torch.where(has_distribution_R, token_R, -1)
    chosen_R = scaled_RV.gather(1, token_R.clamp(min=0)[:, None]).squeeze(1) - lse_R
    chosen_R = torch.where(has_distribution_R, chosen_R, torch.nan)
    kept_mass_R = torch.where(has_distribution_R, kept_mass_R, torch.nan)
    return token_R, chosen_R, torch.where(rows.greedy_R, chosen_R, kept_mass_R)


def edited(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """The logits after penalties, biases and bans."""
    num_rows, vocab = logits_RV.shape
    row_E = torch.repeat_interleave(rows.edit_offsets.diff(), output_size=len(rows.edit_ids))
    # Ids past the vocabulary edit an extra column that is cut off below.
    ids_E = rows.edit_ids.long().clamp(max=vocab)
    edited = torch.cat([logits_RV, logits_RV.new_zeros(num_rows, 1)], 1)
    logit_E = edited[row_E, ids_E]
    scaled_E = torch.where(logit_E > 0, logit_E / rows.edit_scale, logit_E * rows.edit_scale)
    edited[row_E, ids_E] = scaled_E + rows.edit_add
    return edited[:, :vocab]


def _inverse_cdf(scaled_RV: Tensor, lse_R: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor]:
    """(token, log mass of the kept set) of each row, in float64."""
    mass_RV = (scaled_RV - lse_R[:, None]).double().exp()
    is_kept_RV = _kept(scaled_RV, mass_RV, rows)
    mass_RV = torch.where(is_kept_RV, mass_RV, 0.0)
    cumulative_RV = mass_RV.cumsum(1)
    target_R1 = rows.uniform_R[:, None] * cumulative_RV[:, -1:]
    is_drawable_RV = mass_RV > 0
    past_RV = is_drawable_RV & (cumulative_RV > target_R1)
    last_R = scaled_RV.shape[1] - 1 - _first(is_drawable_RV.flip(1))
    token_R = torch.where(past_RV.any(1), _first(past_RV), last_R)
    log_mass_R = cumulative_RV[:, -1].log().to(scaled_RV.dtype)
    return token_R, torch.where(is_kept_RV.all(1), 0.0, log_mass_R)


def _kept(scaled_RV: Tensor, mass_RV: Tensor, rows: SamplingRows) -> Tensor:
    vocab = scaled_RV.shape[1]
    sorted_ = torch.sort(scaled_RV, dim=1, descending=True, stable=True)
    top_k_R = torch.where(rows.top_k_R > 0, rows.top_k_R, vocab).long().clamp(max=vocab)
    is_kept_RV = scaled_RV >= sorted_.values.gather(1, (top_k_R - 1)[:, None])
    # The likeliest ids that top_k left, until they hold top_p of its mass; ties by ascending id.
    sorted_mass_RV = torch.where(is_kept_RV, mass_RV, 0.0).gather(1, sorted_.indices)
    cumulative_RV = sorted_mass_RV.cumsum(1)
    top_p_R1 = rows.top_p_R.double()[:, None]
    is_in_RV = cumulative_RV - sorted_mass_RV < top_p_R1 * cumulative_RV[:, -1:]
    is_nucleus_RV = torch.zeros_like(is_in_RV).scatter(
        1, sorted_.indices, is_in_RV | (top_p_R1 >= 1)
    )
    floor_R1 = rows.min_p_R.double().log().to(scaled_RV.dtype)[:, None]
    is_likely_RV = scaled_RV - sorted_.values[:, :1] >= floor_R1
    return is_kept_RV & is_nucleus_RV & (is_likely_RV | (rows.min_p_R <= 0)[:, None])


def _first(is_set_RV: Tensor) -> Tensor:
    """int64 [R]: the first column that is set, or the number of columns if none is."""
    vocab = is_set_RV.shape[1]
    columns_V = torch.arange(vocab, device=is_set_RV.device)
    return torch.where(is_set_RV, columns_V, vocab).amin(1)
