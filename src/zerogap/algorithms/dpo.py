"""Direct preference optimisation as a weighted sum of log-probs, so a pair may be in different micro-batches.

    h = (log pi - log ref)(chosen) - (log pi - log ref)(rejected)          sums over trainable tokens
    loss of a pair = -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)

(https://arxiv.org/abs/2305.18290, eq. 7; label smoothing e: https://ericmitchell.ai/cdpo.pdf). The loss depends on
token log-probs only through two sums, so its gradient is the sum over tokens of coefficient * gradient of log_prob, where

    coefficient = beta * d loss / d (beta h), with + for the chosen and - for the rejected sample

is one number per sample. Computed before the update from the sums under its initial weights, it gives the exact
gradient for any packing. The price is a forward pass for the sums before each update. The value of the loss is computed
here, because the sum of ``coefficient * log_prob`` is a different number. B samples, P pairs. float64.
"""

from dataclasses import dataclass

import numpy as np

from zerogap.algorithms._shapes import Float, Int
from zerogap.errors import DataError, NumericsError


@dataclass(frozen=True)
class DPOTerms:
    """One update's preferences."""

    coefficient_B: np.ndarray
    """float64 [B]: coefficient of the sample's log-probs, minus the advantage of its tokens; 0 for a sample in no pair."""
    denominator_B: np.ndarray
    """float64 [B]: the number of pairs, so that ``reduce_loss`` gives the gradient of the mean loss of a pair."""
    losses_P: np.ndarray
    """float64 [P]: the loss of each pair, nats; their mean is the update's loss."""
    margins_P: np.ndarray
    """float64 [P]: beta h, the reward of the chosen sample minus that of the rejected one."""
    chosen_rewards_P: np.ndarray
    """float64 [P]: beta (log pi - log ref) of the chosen sample."""
    rejected_rewards_P: np.ndarray
    """float64 [P]: the same of the rejected sample."""

    @property
    def accuracy(self) -> float:
        """Share of pairs whose chosen sample has the larger reward."""
        return float((self.margins_P > 0).mean())


def dpo_coefficients(
    policy_sums_B: Float[np.ndarray, "B"],
    ref_sums_B: Float[np.ndarray, "B"],
    pairs_P2: Int[np.ndarray, "P 2"],
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> DPOTerms:
    """The coefficient of each sample, and the value of the DPO loss.

    Args:
        policy_sums_B: log-prob of each sample under the update's initial weights (``sample_sums``), nats.
        ref_sums_B: the same under the reference. Slots of samples in no pair may hold anything.
        pairs_P2: (chosen, rejected) indices of samples; a sample may be in several pairs.
        beta: strength of the penalty on leaving the reference.
        label_smoothing: assumed share of wrong preferences, below 0.5.
    """
    if len(pairs_P2) == 0:
        msg = f"{len(policy_sums_B)} samples but no pair, so there is no preference to learn; skip the update"
        raise DataError(msg)
    used = np.unique(pairs_P2)
    if (bad := used[~np.isfinite(policy_sums_B[used] - ref_sums_B[used])]).size:
        msg = (
            f"sample {bad[0]} has log-prob {policy_sums_B[bad[0]]} and reference log-prob {ref_sums_B[bad[0]]}: a preference "
            "needs both finite; look at the sample, the weights and the learning rate"
        )
        raise NumericsError(msg)
    rewards_B = beta * (np.asarray(policy_sums_B, np.float64) - ref_sums_B)
    chosen_P, rejected_P = rewards_B[pairs_P2[:, 0]], rewards_B[pairs_P2[:, 1]]
    margins_P = chosen_P - rejected_P
    slope_P = beta * (
        label_smoothing * _sigmoid(margins_P) - (1 - label_smoothing) * _sigmoid(-margins_P)
    )
    coefficient_B = np.zeros(len(policy_sums_B))
    np.add.at(coefficient_B, pairs_P2[:, 0], slope_P)
    np.add.at(coefficient_B, pairs_P2[:, 1], -slope_P)
    return DPOTerms(
        coefficient_B=coefficient_B,
        denominator_B=np.full(len(policy_sums_B), float(len(pairs_P2))),
        losses_P=(1 - label_smoothing) * np.logaddexp(0, -margins_P)
        + label_smoothing * np.logaddexp(0, margins_P),
        margins_P=margins_P,
        chosen_rewards_P=chosen_P,
        rejected_rewards_P=rejected_P,
    )


def _sigmoid(values: np.ndarray) -> np.ndarray:
    # exp of minus a softplus: no overflow on either side.
    return np.exp(-np.logaddexp(0, -values))
