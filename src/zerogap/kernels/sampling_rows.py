"""The parameters of R draws: the engine fills them in, the sampler reads them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SamplingRows:
    """How each of R rows draws its token. Edits are a CSR list of (id, scale, add) per row."""

    temperature_R: Tensor
    """float32 [R], positive; 1 for greedy rows."""
    greedy_R: Tensor
    """bool [R]: take the largest logit (lowest id on ties)."""
    top_k_R: Tensor
    """int32 [R]; -1 keeps all."""
    top_p_R: Tensor
    """float32 [R]; 1 keeps all."""
    min_p_R: Tensor
    """float32 [R]; 0 keeps all."""
    uniform_R: Tensor
    """float64 [R] in [0, 1): the noise."""
    edit_offsets: Tensor
    """int64 [R + 1]: row r's edits are [offsets[r], offsets[r + 1])."""
    edit_ids: Tensor
    """int32 [E], 0 or more: each id at most once per row; ids at or past ``vocab_limit`` have no effect."""
    edit_scale: Tensor
    """float32 [E]: logit / scale if positive, else logit * scale (repetition penalty); 1 changes nothing."""
    edit_add: Tensor
    """float32 [E]: added after scaling; -inf bans the id."""
