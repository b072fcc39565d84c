"""Losses on the data set's answers."""

from typing import ClassVar, Literal

from pydantic import Field

from zerogap.algorithms.losses.base import Loss
from zerogap.algorithms.terms import LossTerms, Surrogate


class SFTLoss(Loss):
    """Cross-entropy on reference answers, -log_prob in nats; only evaluation samples."""

    kind: Literal["sft"] = "sft"
    """Which objective."""
    trains_on_completions: ClassVar[bool] = False

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        return Surrogate(-terms.log_probs_T, terms.log_probs_T != terms.log_probs_T)


class DPOLoss(Loss):
    """Prefer the reference answer to a rejected one, relative to the initial policy (https://arxiv.org/abs/2305.18290).

    The advantage of a token is minus ``DPOTerms.coefficient_B`` of its answer: -A log_prob has DPO's gradient.
    """

    kind: Literal["dpo"] = "dpo"
    """Which objective."""
    beta: float = Field(0.1, gt=0)
    """Strength of the penalty on leaving the initial policy."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of preferences that are assumed to be wrong (conservative DPO)."""
    trains_on_completions: ClassVar[bool] = False
    compares_answers: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = True

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        return Surrogate(-terms.advantages_T * terms.log_probs_T, terms.log_probs_T != terms.log_probs_T)  # fmt: skip
