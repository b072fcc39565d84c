"""Off-policy sequence mask: what the policy has already left is not pushed down further. T tokens."""

from collections.abc import Callable

from torch import Tensor

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.finite import name_by_index, require_finite
from zerogap.algorithms.records import record_means


def off_policy_keep(
    log_probs_T: Float[Tensor, "T"],
    old_log_probs_T: Float[Tensor, "T"],
    advantages_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    record_T: Int[Tensor, "T"],
    record_len_T: Int[Tensor, "T"],
    *,
    max_kl: float,
    name_token: Callable[[int], str] = name_by_index,
) -> Bool[Tensor, "T"]:
    """False at tokens with A < 0 of a record whose mean of old - current log-prob exceeds ``max_kl`` nats.

    DeepSeek-V3.2, https://arxiv.org/abs/2512.02556, section 3.1. With one advantage a record the whole record goes.
    The mean is over the record's trainable tokens; in the first update it is 0 if ``old_log_probs_T`` are the trainer's.
    The paper takes the sampler's log-probs there, which adds the gap to what is measured. All of a record's
    trainable tokens (``record_len_T``) have to be here.

    Returns:
        ``loss_mask_T`` less what is rejected, for ``reduce_loss``; no denominator changes.
    """
    old_log_probs_T = require_finite(
        old_log_probs_T.detach(), loss_mask_T, "old log-prob", name_token
    )
    log_probs_T = require_finite(log_probs_T.detach(), loss_mask_T, "log-prob", name_token)
    advantages_T = require_finite(advantages_T.detach(), loss_mask_T, "advantage", name_token)
    drop_T = old_log_probs_T - log_probs_T
    mean_T = record_means(drop_T, loss_mask_T, record_T, record_len_T, name_token)
    return loss_mask_T & ~((advantages_T < 0) & (mean_T > max_kl))
