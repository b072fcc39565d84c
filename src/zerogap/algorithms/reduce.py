"""Reduces per-token terms to a loss.

    loss = sum_t numerator_t * weight_t * keep_t / denominator_t

``numerator`` comes from a loss, ``kl``, ``distillation`` or ``values``, ``weight`` is a detached importance
weight, ``keep`` the loss mask without rejected tokens (both from ``corrections``), ``denominator`` is what
``loss_denominators`` gave for the token's sample. T tokens of any number of samples.
"""

from zerogap.algorithms._shapes import Bool, Float, Tensor


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
    terms_T = numerator_T.double().where(keep_T, 0.0)
    if weight_T is not None:
        terms_T = terms_T * weight_T.detach().double().where(keep_T, 0.0)
    return (terms_T / denominator_T.double().where(keep_T, 1.0)).sum()
