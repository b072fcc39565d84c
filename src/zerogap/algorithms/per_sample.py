"""Sums and means over the trainable tokens of each sample.

A sample's tokens are added in order, so its sum has the same bits in every batch. T tokens of R samples, in any order;
S all tokens of B samples.
"""

from collections.abc import Callable

import numpy as np

from zerogap.algorithms._shapes import Bool, Float, Int, Tensor
from zerogap.algorithms.finite import finite_column, name_by_index
from zerogap.errors import DataError


def sample_sums(
    values_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    sample_S: Int[np.ndarray, "S"],
    *,
    num_samples: int,
    what: str = "value",
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "B"]:
    """The sum over each sample's unmasked tokens, float64; 0 for a sample without such tokens.

    Args:
        values_S: one number per token; masked slots may hold anything.
        loss_mask_S: tokens that count.
        sample_S: index of the sample of each token, below ``num_samples``.
        num_samples: B.
        what: name of a value in errors.
        name_token: name of token s in errors.
    """
    values_S = finite_column(values_S, loss_mask_S, what, name_token)
    return np.bincount(sample_S, weights=values_S, minlength=num_samples)


def sample_means(
    values_T: Float[Tensor, "T"],
    mask_T: Bool[Tensor, "T"],
    sample_T: Int[Tensor, "T"],
    sample_len_T: Int[Tensor, "T"],
    name_token: Callable[[int], str],
) -> Float[Tensor, "T"]:
    """At each token, the mean over its sample's unmasked tokens, with gradient; 0 at masked slots.

    Args:
        values_T: 0 where masked.
        mask_T: tokens that count.
        sample_T: which sample a token belongs to.
        sample_len_T: number of its tokens that count in the train batch; DataError unless all are in this micro-batch.
        name_token: name of token t in errors.
    """
    samples_R, which_T = sample_T.unique(return_inverse=True)
    here_R = which_T.new_zeros(len(samples_R)).index_add(0, which_T, mask_T.long())
    is_cut_T = mask_T & (here_R[which_T] != sample_len_T)
    if is_cut_T.any():
        first = int(is_cut_T.nonzero()[0])
        msg = (
            f"{name_token(first)}: {int(here_R[which_T[first]])} of the {int(sample_len_T[first])} trainable tokens of its "
            "sample are in this micro-batch, but a mean over the sample needs all; do not split samples"
        )
        raise DataError(msg)
    sum_R = values_T.new_zeros(len(samples_R)).index_add(0, which_T, values_T)
    return (sum_R / here_R.clamp(min=1))[which_T].where(mask_T, 0.0)
