"""Whether an update did more harm to the engine's policy than it may: the second step of MIPU.

MIPU (Monotonic Inference Policy Update, https://arxiv.org/abs/2606.29526) trains the trainer's policy pi, but what samples and is
served is the engine's mu. It undoes an update after which mu is expected to be worse than pi by more than a tolerance. Its first
step is truncated importance weights (``corrections.weight``) on a dual-clipped loss, as here.

The estimate, after a secondary reading of the paper: J(mu) - J(pi) is minus the mean of rho A over samples of mu, with
rho = exp(mean over a sample's tokens of log pi - log mu) and A the group's standard score. As the A of a group add up to 0,
minus the mean of (rho - 1) A is the same number, and exactly 0 without a gap. The paper draws validation samples right after
the update; here the next step's batch serves, which mu has drawn anyway, so that the decision comes one step later and is free.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.finite import MAX_LOG_RATIO
from zerogap.algorithms.group_statistics import group_advantages
from zerogap.section import Section


class AcceptanceConfig(Section):
    """[acceptance]: undo an update after which the engine's policy is worse than the trainer's (https://arxiv.org/abs/2606.29526)."""

    tolerance: float = Field(1e-3, ge=0)
    """Loss of expected advantage, in standard deviations of the reward, that an update may cost the engine's policy."""
    final_tolerance: float = Field(0.0, ge=0)
    """The tolerance after decay_steps; it falls linearly."""
    decay_steps: int = Field(100, ge=1)
    """Steps in which the tolerance falls."""

    def at(self, step: int) -> float:
        """The tolerance after so many steps."""
        left = max(0.0, 1 - step / self.decay_steps)
        return self.final_tolerance + left * (self.tolerance - self.final_tolerance)

    def problems(self) -> Iterator[str]:
        """A tolerance that rises."""
        if self.final_tolerance > self.tolerance:
            yield f"final_tolerance = {self.final_tolerance}, tolerance = {self.tolerance}: the tolerance falls; set final_tolerance to at most tolerance"


@dataclass(frozen=True)
class Acceptance:
    """The judgement of the last update, made from samples that its weights drew."""

    inference_gain: float
    """Estimate of J(engine's policy) - J(trainer's policy), in standard deviations of the reward."""
    tolerance: float

    @property
    def is_accepted(self) -> bool:
        """Whether the update stays."""
        return self.inference_gain >= -self.tolerance


def inference_gain(
    old_log_probs_S: Float[np.ndarray, "S"],
    rollout_log_probs_S: Float[np.ndarray, "S"],
    loss_mask_S: Bool[np.ndarray, "S"],
    sample_S: Int[np.ndarray, "S"],
    rewards_B: Float[np.ndarray, "B"],
    group_ids: Sequence[str],
    is_valid_B: Bool[np.ndarray, "B"],
) -> float:
    """Minus the mean over valid samples of (rho - 1) A.

    Args:
        old_log_probs_S: the trainer's, with the weights that drew the samples.
        rollout_log_probs_S: the engine's.
        loss_mask_S: tokens that count; the other slots may hold anything. A sample without one has rho = 1.
        sample_S: which sample a token belongs to.
        rewards_B: as advantages see them.
        group_ids: one a sample.
        is_valid_B: samples that count.
    """
    found = group_advantages(rewards_B, group_ids, is_valid_B, divisor="group_std")
    gap_U = old_log_probs_S[loss_mask_S].astype(np.float64) - rollout_log_probs_S[loss_mask_S]
    sample_U, num_samples = sample_S[loss_mask_S], len(rewards_B)
    num_tokens_B = np.bincount(sample_U, minlength=num_samples)
    mean_B = np.bincount(sample_U, weights=gap_U, minlength=num_samples) / np.maximum(num_tokens_B, 1)  # fmt: skip
    more_B = np.expm1(mean_B.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    terms = (more_B * found.advantages)[is_valid_B]
    return -math.fsum(terms) / max(len(terms), 1)
