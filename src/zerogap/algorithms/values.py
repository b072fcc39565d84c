"""The critic's loss. T tokens of any number of samples."""

from collections.abc import Callable

from zerogap.algorithms._shapes import Bool, Float, Tensor
from zerogap.algorithms.finite import name_by_index, require_finite
from zerogap.algorithms.terms import Surrogate


def value_surrogate(
    values_T: Float[Tensor, "T"],
    old_values_T: Float[Tensor, "T"],
    returns_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    *,
    value_clip: float,
    name_token: Callable[[int], str] = name_by_index,
) -> Surrogate:
    """Half the squared error of each value, or of the value clipped to near the old one, whichever is larger.

    max((V - G)**2, (clip(V, V_old - c, V_old + c) - G)**2) / 2
    (PPO's implementation, described in https://arxiv.org/abs/2005.12729, section 3). Sum it with denominator "token".

    Args:
        values_T: the critic's, with gradient, before each token is sampled.
        old_values_T: at the start of the step, as given to ``gae_advantages``.
        returns_T: its targets.
        loss_mask_T: trainable tokens; the other slots may hold anything.
        value_clip: c, in units of reward; 0 for no bound.
        name_token: name of token t in errors.
    """
    values_T = require_finite(values_T, loss_mask_T, "value", name_token)
    old_values_T = require_finite(old_values_T.detach(), loss_mask_T, "old value", name_token)
    returns_T = require_finite(returns_T.detach(), loss_mask_T, "return", name_token)
    free_T = (values_T - returns_T).square() / 2
    if value_clip == 0:
        return Surrogate(free_T, loss_mask_T.new_zeros(loss_mask_T.shape))
    # Not old + clamp(value - old): that rounds, and a value within the bounds would count as clipped.
    near_T = values_T.clamp(old_values_T - value_clip, old_values_T + value_clip)
    bounded_T = (near_T - returns_T).square() / 2
    is_clipped_T = bounded_T > free_T
    return Surrogate(bounded_T.where(is_clipped_T, free_T), is_clipped_T)
