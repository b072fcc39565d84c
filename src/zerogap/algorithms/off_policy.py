"""Off-policy sequence mask: samples that have already become unlikely are not pushed down further. T tokens."""

from collections.abc import Callable

from torch import Tensor

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.finite import name_by_index, require_finite
from zerogap.algorithms.per_sample import sample_means


def off_policy_keep(
    log_probs_T: Float[Tensor, "T"],
    old_log_probs_T: Float[Tensor, "T"],
    advantages_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    sample_T: Int[Tensor, "T"],
    sample_len_T: Int[Tensor, "T"],
    *,
    max_kl: float,
    name_token: Callable[[int], str] = name_by_index,
) -> Bool[Tensor, "T"]:
    """False at tokens with A < 0 whose sample has a mean of old - current log-prob above ``max_kl`` nats.

    DeepSeek-V3.2, https://arxiv.org/abs/2512.02556, section 3.1. With one advantage a sample, the whole sample is dropped.
    The mean is over the sample's trainable tokens; in the first update it is 0 if ``old_log_probs_T`` are the trainer's own.
    The paper uses the engine's log-probs instead, which adds the gap to the measure. All of a sample's trainable tokens
    (``sample_len_T``) must be in the micro-batch.

    Returns:
        ``loss_mask_T`` without rejected tokens, for ``reduce_loss``; no denominator changes.
    """
    old_log_probs_T = require_finite(
        old_log_probs_T.detach(), loss_mask_T, "old log-prob", name_token
    )
    log_probs_T = require_finite(log_probs_T.detach(), loss_mask_T, "log-prob", name_token)
    advantages_T = require_finite(advantages_T.detach(), loss_mask_T, "advantage", name_token)
    drop_T = old_log_probs_T - log_probs_T
    mean_T = sample_means(drop_T, loss_mask_T, sample_T, sample_len_T, name_token)
    return loss_mask_T & ~((advantages_T < 0) & (mean_T > max_kl))
