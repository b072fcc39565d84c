"""Off-policy sequence mask: samples that have already become unlikely are not pushed down further. T tokens."""

from collections.abc import Callable

from zerogap.algorithms._shapes import Bool, Float, Int, Tensor
from zerogap.algorithms.finite import name_by_index, require_finite
from zerogap.algorithms.per_sample import sample_means


def off_policy_keep(
    log_probs_T: Float[Tensor, "T"],
    rollout_log_probs_T: Float[Tensor, "T"],
    advantages_T: Float[Tensor, "T"],
    loss_mask_T: Bool[Tensor, "T"],
    sample_T: Int[Tensor, "T"],
    sample_len_T: Int[Tensor, "T"],
    *,
    max_kl: float,
    name_token: Callable[[int], str] = name_by_index,
) -> Bool[Tensor, "T"]:
    """False at tokens with A < 0 whose sample has a mean of rollout - current log-prob above ``max_kl`` nats.

    DeepSeek-V3.2, https://arxiv.org/abs/2512.02556, section 3.1. The engine's log-probs are those of the policy that drew the
    tokens, so the measure holds the age of a sample and the engine's gap. With one advantage a sample, the whole sample is
    dropped from the policy's term; the KL penalty keeps it. The mean is over the sample's trainable tokens, and all of
    these (``sample_len_T``) must be in the micro-batch.

    Returns:
        ``loss_mask_T`` without rejected tokens, for ``reduce_loss``; no denominator changes.
    """
    rollout_log_probs_T = require_finite(
        rollout_log_probs_T.detach(), loss_mask_T, "rollout log-prob", name_token
    )
    log_probs_T = require_finite(log_probs_T.detach(), loss_mask_T, "log-prob", name_token)
    advantages_T = require_finite(advantages_T.detach(), loss_mask_T, "advantage", name_token)
    drop_T = rollout_log_probs_T - log_probs_T
    mean_T = sample_means(drop_T, loss_mask_T, sample_T, sample_len_T, name_token)
    return loss_mask_T & ~((advantages_T < 0) & (mean_T > max_kl))
