"""What each kind of loss computes for a micro-batch. R targets.

``requirements`` says what each kind needs beforehand.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms import (
    Surrogate,
    cispo_surrogate,
    clipped_surrogate,
    gspo_surrogate,
    kl_estimate,
    off_policy_keep,
    reduce_loss,
    reinforce_surrogate,
    sft_surrogate,
    top_k_kl,
    weighted_log_probs,
)
from zerogap.config.loss import (
    CISPOLossConfig,
    DAPOLossConfig,
    DistillationLossConfig,
    DPOLossConfig,
    DrGRPOLossConfig,
    GRPOLossConfig,
    GSPOLossConfig,
    LossConfig,
    PolicyLoss,
    PPOLossConfig,
    ReinforcePlusPlusLossConfig,
    RLOOLossConfig,
    SFTLossConfig,
)
from zerogap.train.columns import StepColumns
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import StepPlan


@dataclass(frozen=True)
class Candidates:
    """Log-probs by policy and teacher, for a KL over several ids at each token."""

    log_probs_RK: Tensor
    """With gradient."""
    teacher_log_probs_RK: Tensor


def micro_batch_loss(
    log_probs_R: Tensor,
    plan: StepPlan,
    columns: StepColumns,
    batch: MicroBatch,
    loss: LossConfig,
    *,
    candidates: Candidates | None = None,
) -> tuple[Tensor, dict[str, np.ndarray]]:
    """A micro-batch's share of its update's loss, over the plan's denominators; reads the step's columns.

    Importance weights multiply the policy's terms but not the KL penalty; rejected tokens are in neither. Arithmetic is in
    float64: it costs nothing beside the forward pass, and leaves only the kernels' rounding.

    Returns:
        The loss, float64 with gradient; values of each target, by name of the column in ``StepColumns``.
    """
    terms = _Terms(log_probs_R.double(), plan, columns, batch)
    if candidates is not None and isinstance(loss, DistillationLossConfig):
        surrogate = terms.top_k(candidates, loss)
    else:
        surrogate = terms.surrogate(loss)
    terms.found["is_clipped_S"] = surrogate.is_clipped_T.numpy()
    keep_R = terms.keep(plan.off_policy_kl)
    weight_R = None if plan.corrections is None else terms.read(plan.corrections.weight_S)
    denominator_R = torch.from_numpy(plan.denominator_B[batch.sample_R])
    total = reduce_loss(surrogate.numerator_T, denominator_R, keep_R, weight_T=weight_R)
    if isinstance(loss, PolicyLoss) and loss.kl.kind != "none":
        kl_R = terms.kl(loss)
        if loss.kl.place == "loss":
            total = total + reduce_loss(loss.kl.coefficient * kl_R, denominator_R, keep_R)
    return total, terms.found


class _Terms:
    """One micro-batch's targets, as the formulas take them."""

    def __init__(
        self, log_probs_R: Tensor, plan: StepPlan, columns: StepColumns, batch: MicroBatch
    ) -> None:
        self.plan, self.columns, self.log_probs_R = plan, columns, log_probs_R
        self.found: dict[str, np.ndarray] = {}
        self.slots_R = plan.tokens.index.slots(batch)
        # Every target is a loss token: packing left the masked ones out.
        self.mask_R = torch.ones(len(self.slots_R), dtype=torch.bool)
        self.sample_R = torch.from_numpy(batch.sample_R)
        self.sample_len_R = torch.from_numpy(plan.tokens.num_loss_tokens_B[batch.sample_R])

    def read(self, column_S: np.ndarray) -> Tensor:
        """[R] of a column."""
        return torch.from_numpy(column_S[self.slots_R])

    def name(self, target: int) -> str:
        """The name of a target in errors."""
        return self.plan.tokens.index.name(int(self.slots_R[target]))

    def surrogate(self, loss: LossConfig) -> Surrogate:
        """The policy's terms of a loss on the log-probs of the drawn tokens."""
        compared, name = self._compared(), self.name
        match loss:
            case (
                GRPOLossConfig()
                | DrGRPOLossConfig()
                | DAPOLossConfig()
                | ReinforcePlusPlusLossConfig()
                | PPOLossConfig()
            ):
                return clipped_surrogate(
                    *compared,
                    clip_low=loss.clip_low,
                    clip_high=loss.clip_high,
                    dual_clip=loss.dual_clip,
                    name_token=name,
                )
            case GSPOLossConfig():
                return gspo_surrogate(
                    *compared,
                    self.sample_R,
                    self.sample_len_R,
                    clip_low=loss.clip_low,
                    clip_high=loss.clip_high,
                    name_token=name,
                )
            case CISPOLossConfig():
                return cispo_surrogate(
                    *compared,
                    ratio_low=loss.ratio_low,
                    ratio_high=loss.ratio_high,
                    name_token=name,
                )
            case RLOOLossConfig() | DistillationLossConfig():
                return reinforce_surrogate(*compared, name_token=name)
            case SFTLossConfig():
                return sft_surrogate(self.log_probs_R, self.mask_R, name_token=name)
            case DPOLossConfig():
                log_probs_R, _, advantages_R, mask_R = compared
                return weighted_log_probs(log_probs_R, -advantages_R, mask_R, name_token=name)

    def top_k(self, candidates: Candidates, loss: DistillationLossConfig) -> Surrogate:
        """The KL to the teacher over the teacher's likeliest ids."""
        kl_R = top_k_kl(
            candidates.log_probs_RK,
            candidates.teacher_log_probs_RK,
            self.mask_R,
            direction=loss.direction,
            name_token=self.name,
        )
        self.found["teacher_kl_S"] = kl_R.detach().numpy()
        return Surrogate(kl_R, torch.zeros_like(self.mask_R))

    def kl(self, loss: PolicyLoss) -> Tensor:
        """The estimate of the KL to the reference, with gradient."""
        assert loss.kl.kind != "none"
        assert self.plan.ref_log_probs_S is not None, "a KL penalty has a reference"
        kl_R = kl_estimate(
            self.log_probs_R,
            self.read(self.plan.ref_log_probs_S).double(),
            self.mask_R,
            kind=loss.kl.kind,
            name_token=self.name,
        )
        self.found["kl_S"] = kl_R.detach().numpy()
        return kl_R

    def keep(self, off_policy_kl: float | None) -> Tensor:
        """Targets that stay in the numerators."""
        plan, keep_R = self.plan, self.mask_R
        if plan.corrections is not None:
            keep_R = self.read(plan.corrections.keep_S)
        if off_policy_kl is None:
            return keep_R
        stays_R = off_policy_keep(
            *self._compared(),
            self.sample_R,
            self.sample_len_R,
            max_kl=off_policy_kl,
            name_token=self.name,
        )
        self.found["has_left_S"] = ~stays_R.numpy()
        return keep_R & stays_R

    def _compared(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probs, old log-probs, advantages, mask."""
        old_R = self.read(self.columns.old_log_probs_S).double()
        return self.log_probs_R, old_R, self.read(self.columns.advantages_S), self.mask_R
