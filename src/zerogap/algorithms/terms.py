"""What a loss sees of a micro-batch's tokens, and what it returns. T tokens of any number of samples, all of them trainable."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from zerogap.algorithms._shapes import Float, Int, Tensor
from zerogap.algorithms.finite import MAX_LOG_RATIO, name_by_index
from zerogap.algorithms.per_sample import sample_means

Level = Literal["token", "sequence", "geometric"]
"""What a ratio is of: a token; the product over a sample's trainable tokens; their geometric mean."""


class Surrogate(NamedTuple):
    """Per-token loss terms before weighting."""

    numerator_T: Tensor
    """To be minimised."""
    is_clipped_T: Tensor
    """bool: a bound decided the value. Such a token has no gradient, except where the loss's docstring says otherwise."""


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """Float64 [T] each; only ``log_probs_T`` and ``ratio_T`` have a gradient."""

    log_probs_T: Float[Tensor, "T"]
    """The current policy's, nats."""
    ratio_T: Float[Tensor, "T"]
    """exp(log_probs - old_log_probs) at the loss's level, see ``policy_ratio``."""
    advantages_T: Float[Tensor, "T"]
    old_log_probs_T: Float[Tensor, "T"]
    """The policy's at the start of the step (the engine's with ``train.old_log_probs = "rollout"``)."""
    rollout_log_probs_T: Float[Tensor, "T"]
    """The engine's at sampling time; NaN for answers of the data set."""


def policy_ratio(
    log_probs_T: Float[Tensor, "T"],
    old_log_probs_T: Float[Tensor, "T"],
    sample_T: Int[Tensor, "T"],
    sample_len_T: Int[Tensor, "T"],
    *,
    level: Level,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[Tensor, "T"]:
    """exp(log_probs - old_log_probs) of each token, or one number for all tokens of a sample, with gradient.

    At levels sequence and geometric a token's ratio is sg(s) exp(p - sg(p)): its value is the sample's ratio s, its gradient
    that of its own log-prob times s. This is GSPO-token (https://arxiv.org/abs/2507.18071, eqs. 13-18); where all tokens of
    a sample have the same advantage, weight and fate, the gradient is GSPO's (eq. 10). A rejected token has none, and a
    token's weight weighs its own. Log-ratios are cut at +-20.

    Args:
        log_probs_T: current policy, with gradient, nats.
        old_log_probs_T: at the start of the step.
        sample_T: which sample a token belongs to.
        sample_len_T: number of its trainable tokens in the train batch; above level token all must be in this micro-batch.
        level: what the ratio is of.
        name_token: name of token t in errors.
    """
    log_ratio_T = log_probs_T - old_log_probs_T
    if level == "token":
        return log_ratio_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    everywhere_T = sample_T == sample_T
    of_sample_T = sample_means(
        log_ratio_T.detach(), everywhere_T, sample_T, sample_len_T, name_token
    )
    if level == "sequence":
        of_sample_T = of_sample_T * sample_len_T
    own_T = log_probs_T - log_probs_T.detach()
    return (of_sample_T.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) + own_T).exp()
