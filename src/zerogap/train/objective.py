"""A micro-batch's share of the loss: the loss kind's term, and the penalties beside it. R targets."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms import (
    Algorithm,
    LossTerms,
    PolicyLoss,
    RatioLoss,
    Surrogate,
    kl_estimate,
    kl_loss,
    off_policy_keep,
    policy_ratio,
    reduce_loss,
    top_k_kl,
)
from zerogap.algorithms.finite import require_finite
from zerogap.train.columns import StepColumns
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import StepPlan


@dataclass(frozen=True, kw_only=True)
class ModelOutputs:
    """What the policy computed of a micro-batch's targets, with gradient, and the teacher."""

    log_probs_R: Tensor
    entropy_R: Tensor | None
    """If the loss has a term of it."""
    candidates_RK: Tensor | None
    """Log-probs of the teacher's likeliest ids, if the loss has a KL over them."""
    teacher_RK: Tensor | None
    """The teacher's log-probs of the same ids, without gradient."""


def micro_batch_loss(
    outputs: ModelOutputs,
    plan: StepPlan,
    columns: StepColumns,
    batch: MicroBatch,
    algorithm: Algorithm,
) -> tuple[Tensor, dict[str, np.ndarray]]:
    """A micro-batch's share of its update's loss, over the plan's denominators; reads the step's columns.

        sum of [ w (loss's term + KL term + teacher's term) - entropy's term ] / denominator

    w are the importance weights. A token that corrections reject is in none of the terms; one that ``off_policy_kl`` drops is
    missing from the loss's term alone, and so is one outside the entropies' top quantile. Arithmetic is in float64: it costs
    nothing beside the forward pass, and leaves only the kernels' rounding.

    Returns:
        The loss, float64 with gradient; values of each target, by name of the column in ``StepColumns``.
    """
    targets = _Targets(plan, columns, batch)
    log_probs_R = targets.finite(outputs.log_probs_R.double(), "log-prob")
    keep_R, weight_R = targets.mask_R, None
    if plan.corrections is not None:
        keep_R = targets.read(plan.corrections.keep_S)
        weight_R = targets.read(plan.corrections.weight_S)

    def share(numerator_R: Tensor, kept_R: Tensor, weights_R: Tensor | None) -> Tensor:
        return reduce_loss(numerator_R, targets.denominator_R, kept_R, weight_T=weights_R)

    total = log_probs_R.new_zeros(())
    if algorithm.has_policy_ratio or not algorithm.loss.trains_on_completions:
        surrogate = targets.surrogate(log_probs_R, algorithm)
        stays_R = keep_R & targets.stays(log_probs_R, plan.off_policy_kl)
        if plan.policy_keep_S is not None:
            stays_R = stays_R & targets.read(plan.policy_keep_S)
        total = total + share(surrogate.numerator_T, stays_R, weight_R)
    if algorithm.kl.is_on:
        total = total + share(targets.kl(log_probs_R, algorithm), keep_R, weight_R)
    if outputs.candidates_RK is not None and outputs.teacher_RK is not None:
        taught_R = targets.mask_R
        if plan.teacher_keep_S is not None:
            taught_R = targets.read(plan.teacher_keep_S)
        kl_R = targets.teacher_kl(outputs.candidates_RK, outputs.teacher_RK, taught_R, algorithm)
        total = total + share(kl_R, keep_R & taught_R, weight_R)
    if outputs.entropy_R is not None:
        bonus_R = -algorithm.entropy.coefficient * outputs.entropy_R.double()
        total = total + share(bonus_R, keep_R, None)
    return total, targets.found


class _Targets:
    """One micro-batch's targets, as the formulas take them."""

    def __init__(self, plan: StepPlan, columns: StepColumns, batch: MicroBatch) -> None:
        self._plan, self._columns = plan, columns
        self._slots_R = plan.tokens.index.slots(batch)
        # Every target is a loss token: packing left the masked ones out.
        self.mask_R = torch.ones(len(self._slots_R), dtype=torch.bool)
        self.denominator_R = torch.from_numpy(plan.denominator_B[batch.sample_R])
        self._sample_R = torch.from_numpy(batch.sample_R)
        self._sample_len_R = torch.from_numpy(plan.tokens.num_loss_tokens_B[batch.sample_R])
        self.found = {"is_clipped_S": np.zeros(len(self._slots_R), bool)}

    def read(self, column_S: np.ndarray) -> Tensor:
        """[R] of a column."""
        return torch.from_numpy(column_S[self._slots_R])

    def finite(self, values_R: Tensor, what: str) -> Tensor:
        """The values; raises NumericsError naming the first that is not finite."""
        return require_finite(values_R, self.mask_R, what, self._name)

    def surrogate(self, log_probs_R: Tensor, algorithm: Algorithm) -> Surrogate:
        """The loss kind's term."""
        loss = algorithm.loss
        old_R = self._old() if isinstance(loss, PolicyLoss) else log_probs_R.detach()
        ratio_R = policy_ratio(
            log_probs_R,
            old_R,
            self._sample_R,
            self._sample_len_R,
            level=loss.ratio if isinstance(loss, RatioLoss) else "token",
            name_token=self._name,
        )
        surrogate = loss.surrogate(
            LossTerms(
                log_probs_T=log_probs_R,
                ratio_T=ratio_R,
                advantages_T=self.finite(self.read(self._columns.advantages_S), "advantage"),
                old_log_probs_T=old_R,
                rollout_log_probs_T=self.read(self._plan.tokens.rollout_log_probs_S).double(),
            )
        )
        self.found["is_clipped_S"] = surrogate.is_clipped_T.numpy()
        return surrogate

    def stays(self, log_probs_R: Tensor, max_kl: float | None) -> Tensor:
        """Targets that ``off_policy_kl`` leaves in the loss's term."""
        if max_kl is None:
            return self.mask_R
        stays_R = off_policy_keep(
            log_probs_R,
            self.read(self._plan.tokens.rollout_log_probs_S).double(),
            self.read(self._columns.advantages_S),
            self.mask_R,
            self._sample_R,
            self._sample_len_R,
            max_kl=max_kl,
            name_token=self._name,
        )
        self.found["has_left_S"] = ~stays_R.numpy()
        return stays_R

    def kl(self, log_probs_R: Tensor, algorithm: Algorithm) -> Tensor:
        """The KL's term: 0 if the penalty is in the reward, where the estimate is only reported."""
        kl = algorithm.kl
        assert kl.kind != "none"
        assert self._plan.ref_log_probs_S is not None, "a KL penalty has a reference"
        reference_R = self.read(self._plan.ref_log_probs_S).double()
        estimate_R = kl_estimate(
            log_probs_R, reference_R, self.mask_R, kind=kl.kind, name_token=self._name
        )
        self.found["kl_S"] = estimate_R.detach().numpy()
        if not kl.is_in_loss:
            return torch.zeros_like(estimate_R)
        ratio_R = policy_ratio(
            log_probs_R, self._old(), self._sample_R, self._sample_len_R, level="token"
        )
        return kl.coefficient * kl_loss(estimate_R, ratio_R, kind=kl.kind)

    def teacher_kl(
        self,
        candidates_RK: Tensor,
        teacher_RK: Tensor,
        taught_R: Tensor,
        algorithm: Algorithm,
    ) -> Tensor:
        """The KL to the teacher over the teacher's likeliest ids, at the targets that it scores."""
        assert algorithm.teacher is not None
        kl_R = top_k_kl(
            candidates_RK,
            teacher_RK,
            taught_R,
            direction=algorithm.teacher.direction,
            name_token=self._name,
        )
        self.found["teacher_kl_S"] = kl_R.detach().where(taught_R, torch.nan).numpy()
        return algorithm.teacher.weight * kl_R

    def _old(self) -> Tensor:
        old_R = self.read(self._columns.old_log_probs_S).double()
        return self.finite(old_R, "old log-prob")

    def _name(self, target: int) -> str:
        return self._plan.tokens.index.name(int(self._slots_R[target]))
