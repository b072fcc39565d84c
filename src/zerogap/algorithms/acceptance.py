"""Whether an update did more harm to the engine's policy than it may: the second step of MIPU.

MIPU (Monotonic Inference Policy Update, https://arxiv.org/abs/2606.29526) trains the trainer's policy pi, but what samples and is
served is the engine's mu. It undoes an update after which mu is expected to be worse than pi by more than a tolerance. Its first
step is truncated importance weights (``corrections.weight``) on a dual-clipped loss, as here.

The estimate, after a secondary reading of the paper: J(mu) - J(pi) is minus the mean of rho A over samples of mu, with
rho = exp(mean over a rollout's tokens of log pi - log mu) and A the group's standard score. As the A of a group add up to 0,
minus the mean of (rho - 1) A is the same number, and exactly 0 without a gap. The paper draws validation samples right after
the update; here the next step's batch serves, which mu has drawn anyway, so that the decision comes one step later and is free.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.algorithms.finite import MAX_LOG_RATIO, name_by_index
from zerogap.algorithms.group_statistics import group_advantages
from zerogap.algorithms.per_sample import sample_sums
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
    rollout_S: Int[np.ndarray, "S"],
    rewards_B: Float[np.ndarray, "B"],
    group_ids: Sequence[str],
    is_valid_B: Bool[np.ndarray, "B"],
    *,
    name_token: Callable[[int], str] = name_by_index,
) -> float:
    """Minus the mean over valid rollouts of (rho - 1) A.

    Args:
        old_log_probs_S: the trainer's, with the weights that drew the samples.
        rollout_log_probs_S: the engine's.
        loss_mask_S: tokens that count; the other slots may hold anything. A rollout without one has rho = 1.
        rollout_S: the sample that stands for each token's rollout.
        rewards_B: one a sample, as advantages see them.
        group_ids: one a sample.
        is_valid_B: samples that count: one a rollout.
        name_token: name of token s in errors.

    Raises:
        NumericsError: a log-prob of a token that counts is not finite.
    """
    found = group_advantages(rewards_B, group_ids, is_valid_B, divisor="group_std")
    num_samples = len(rewards_B)
    gap_B = sample_sums(
        old_log_probs_S.astype(np.float64) - rollout_log_probs_S,
        loss_mask_S,
        rollout_S,
        num_samples=num_samples,
        what="gap",
        name_token=name_token,
    )
    num_tokens_B = np.bincount(rollout_S[loss_mask_S], minlength=num_samples)
    mean_B = gap_B / np.maximum(num_tokens_B, 1)
    more_B = np.expm1(mean_B.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    terms = (more_B * found.advantages)[is_valid_B]
    return -math.fsum(terms) / max(len(terms), 1)
