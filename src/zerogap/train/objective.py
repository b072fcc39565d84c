"""What each kind of loss computes of a micro-batch. R targets.

What it needs beforehand is in ``requirements``.
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
from zerogap.train.packing import MicroBatch
from zerogap.train.requirements import has_policy_ratio
from zerogap.train.step_state import StepState


def samples_with_signal(step: StepState, loss: LossConfig) -> np.ndarray:
    """Bool [B]: samples whose loss may have a gradient; that of the others is exactly 0."""
    is_from_advantage = has_policy_ratio(loss) and not (
        isinstance(loss, PolicyLoss) and loss.kl.kind != "none" and loss.kl.place == "loss"
    )
    if not is_from_advantage:
        return step.who.is_kept_B
    is_nonzero_S = step.trains_S & (step.advantages.column_S != 0)
    return np.array([bool(nonzero.any()) for nonzero in step.index.split(is_nonzero_S)])


@dataclass(frozen=True)
class Candidates:
    """For a KL over several ids a token: what policy and teacher think of them."""

    log_probs_RK: Tensor
    """With gradient."""
    teacher_log_probs_RK: Tensor


def micro_batch_loss(
    log_probs_R: Tensor,
    step: StepState,
    batch: MicroBatch,
    denominator_R: Tensor,
    loss: LossConfig,
    *,
    off_policy_kl: float | None = None,
    candidates: Candidates | None = None,
) -> Tensor:
    """This micro-batch's share of the update's loss, float64 with gradient.

    Reads and writes the step's columns. Importance weights multiply the policy's terms and not the penalty on the KL; what is
    rejected is in neither. Arithmetic is in float64: it costs nothing beside the forward pass, and what remains of a layout's
    rounding is the kernels'.
    """
    terms = _Terms(log_probs_R.double(), step, batch)
    slots_R = terms.slots_R
    if candidates is not None and isinstance(loss, DistillationLossConfig):
        surrogate = terms.top_k(candidates, loss)
    else:
        surrogate = terms.surrogate(loss)
    step.is_clipped_S[slots_R] = surrogate.is_clipped_T.numpy()
    keep_R = terms.keep(off_policy_kl)
    weight_R = None if step.corrections is None else terms.read(step.corrections.weight_S)
    total = reduce_loss(surrogate.numerator_T, denominator_R, keep_R, weight_T=weight_R)
    if isinstance(loss, PolicyLoss) and loss.kl.kind != "none":
        kl_R = terms.kl(loss)
        if loss.kl.place == "loss":
            total = total + reduce_loss(loss.kl.coefficient * kl_R, denominator_R, keep_R)
    return total


class _Terms:
    """The targets of one micro-batch, as the formulas take them."""

    def __init__(self, log_probs_R: Tensor, step: StepState, batch: MicroBatch) -> None:
        self.step, self.log_probs_R = step, log_probs_R
        self.slots_R = step.index.slots(batch)
        # Every target is a loss token: packing left the masked ones out.
        self.mask_R = torch.ones(len(self.slots_R), dtype=torch.bool)
        self.record_R = torch.from_numpy(batch.sample_R)
        self.record_len_R = torch.from_numpy(step.num_loss_tokens_B[batch.sample_R])

    def read(self, column_S: np.ndarray) -> Tensor:
        """[R] of a column."""
        return torch.from_numpy(column_S[self.slots_R])

    def name(self, target: int) -> str:
        """For errors."""
        return self.step.index.name(int(self.slots_R[target]))

    def surrogate(self, loss: LossConfig) -> Surrogate:
        """The policy's terms of a loss on single log-probs."""
        new_R, mask_R, name = self.log_probs_R, self.mask_R, self.name
        old_R = self.read(self.step.old_log_probs_S).double()
        advantage_R = self.read(self.step.advantages.column_S)
        match loss:
            case (
                GRPOLossConfig()
                | DrGRPOLossConfig()
                | DAPOLossConfig()
                | ReinforcePlusPlusLossConfig()
                | PPOLossConfig()
            ):
                return clipped_surrogate(
                    new_R,
                    old_R,
                    advantage_R,
                    mask_R,
                    clip_low=loss.clip_low,
                    clip_high=loss.clip_high,
                    dual_clip=loss.dual_clip,
                    name_token=name,
                )
            case GSPOLossConfig():
                return gspo_surrogate(
                    new_R,
                    old_R,
                    advantage_R,
                    mask_R,
                    self.record_R,
                    self.record_len_R,
                    clip_low=loss.clip_low,
                    clip_high=loss.clip_high,
                    name_token=name,
                )
            case CISPOLossConfig():
                return cispo_surrogate(
                    new_R,
                    old_R,
                    advantage_R,
                    mask_R,
                    ratio_low=loss.ratio_low,
                    ratio_high=loss.ratio_high,
                    name_token=name,
                )
            case RLOOLossConfig() | DistillationLossConfig():
                return reinforce_surrogate(new_R, old_R, advantage_R, mask_R, name_token=name)
            case SFTLossConfig():
                return sft_surrogate(new_R, mask_R, name_token=name)
            case DPOLossConfig():
                return weighted_log_probs(new_R, -advantage_R, mask_R, name_token=name)

    def top_k(self, candidates: Candidates, loss: DistillationLossConfig) -> Surrogate:
        """The KL to the teacher over the ids that it finds likeliest."""
        kl_R = top_k_kl(
            candidates.log_probs_RK,
            candidates.teacher_log_probs_RK,
            self.mask_R,
            direction=loss.direction,
            name_token=self.name,
        )
        self.step.teacher_kl_S[self.slots_R] = kl_R.detach().numpy()
        return Surrogate(kl_R, torch.zeros_like(self.mask_R))

    def kl(self, loss: PolicyLoss) -> Tensor:
        """The estimate of the KL to the reference, with gradient."""
        assert loss.kl.kind != "none"
        kl_R = kl_estimate(
            self.log_probs_R,
            self.read(self.step.ref_log_probs_S).double(),
            self.mask_R,
            kind=loss.kl.kind,
            name_token=self.name,
        )
        self.step.kl_S[self.slots_R] = kl_R.detach().numpy()
        return kl_R

    def keep(self, off_policy_kl: float | None) -> Tensor:
        """Targets that are left in the numerators."""
        step, keep_R = self.step, self.mask_R
        if step.corrections is not None:
            keep_R = self.read(step.corrections.keep_S)
        if off_policy_kl is None:
            return keep_R
        stays_R = off_policy_keep(
            self.log_probs_R,
            self.read(step.old_log_probs_S).double(),
            self.read(step.advantages.column_S),
            self.mask_R,
            self.record_R,
            self.record_len_R,
            max_kl=off_policy_kl,
            name_token=self.name,
        )
        step.has_left_S[self.slots_R] = ~stays_R.numpy()
        return keep_R & stays_R
