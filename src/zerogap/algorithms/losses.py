"""Reduces per-token terms to a loss.

    loss = sum_t numerator_t * weight_t * keep_t / denominator_t

``numerator`` comes from ``surrogates``, ``kl``, ``distillation`` or ``values``, ``weight`` is a detached importance
weight, ``keep`` the loss mask without rejected tokens (both from ``corrections``), ``denominator`` is what
``loss_denominators`` gave for the token's sample. T tokens of any number of samples.
"""

import torch
from torch import Tensor

from zerogap.algorithms._shapes import Bool, Float


def reduce_loss(
    numerator_T: Float[Tensor, "T"],
    denominator_T: Float[Tensor, "T"],
    keep_T: Bool[Tensor, "T"],
    *,
    weight_T: Float[Tensor, "T"] | None = None,
) -> Float[Tensor, ""]:
    """Sum of numerator * weight * keep / denominator, in float64.

    Args:
        numerator_T: loss terms, with gradient; may hold anything where ``keep_T`` is False.
        denominator_T: of the token's sample, computed over the whole train batch.
        keep_T: the loss mask without tokens that a correction rejected. Rejection changes no denominator.
        weight_T: detached importance weights; None: all are 1.
    """
    zero = numerator_T.new_zeros((), dtype=torch.float64)
    terms_T = torch.where(keep_T, numerator_T.double(), zero)
    if weight_T is not None:
        terms_T = terms_T * torch.where(keep_T, weight_T.detach().double(), zero)
    return (terms_T / torch.where(keep_T, denominator_T.double(), zero + 1)).sum()
