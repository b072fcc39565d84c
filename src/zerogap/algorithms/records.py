"""Sums and means over the trainable tokens of each record.

A record's tokens are added in the order in which they stand, whatever stands between them, so its sum has the same
bits in every batch. T tokens of R records, in any order; S all tokens of B samples.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.finite import finite_column, name_by_index
from zerogap.errors import DataError


def record_sums(
    values_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    record_S: Int[np.ndarray, "S"],
    *,
    num_records: int,
    what: str = "value",
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "B"]:
    """The sum over each record's unmasked tokens, float64; 0 for a record without any.

    Args:
        values_S: one number a token; a masked slot may hold anything.
        loss_mask_S: tokens that count.
        record_S: index of the record of each token, below ``num_records``.
        num_records: B.
        what: how an error calls a value.
        name_token: how an error calls token s.
    """
    values_S = finite_column(values_S, loss_mask_S, what, name_token)
    return np.bincount(record_S, weights=values_S, minlength=num_records)


def record_means(
    values_T: Float[Tensor, "T"],
    mask_T: Bool[Tensor, "T"],
    record_T: Int[Tensor, "T"],
    record_len_T: Int[Tensor, "T"],
    name_token: Callable[[int], str],
) -> Float[Tensor, "T"]:
    """At each token the mean over its record's unmasked tokens, with gradient; 0 at masked slots.

    Args:
        values_T: 0 where masked.
        mask_T: tokens that count.
        record_T: which record a token belongs to.
        record_len_T: its tokens that count in the whole train batch; DataError unless all of them are here.
        name_token: how an error calls token t.
    """
    records_R, which_T = record_T.unique(return_inverse=True)
    here_R = torch.zeros(len(records_R), dtype=torch.int64).index_add(0, which_T, mask_T.long())
    is_cut_T = mask_T & (here_R[which_T] != record_len_T)
    if is_cut_T.any():
        first = int(is_cut_T.nonzero()[0])
        msg = (
            f"{name_token(first)}: {int(here_R[which_T[first]])} of the {int(record_len_T[first])} trainable tokens of its "
            "record are in this micro-batch: a mean over a record needs all of them; keep records whole"
        )
        raise DataError(msg)
    sum_R = values_T.new_zeros(len(records_R)).index_add(0, which_T, values_T)
    return torch.where(mask_T, (sum_R / here_R.clamp(min=1))[which_T], values_T.new_zeros(()))
