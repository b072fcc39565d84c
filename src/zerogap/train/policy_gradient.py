"""Forward and backward of an update's micro-batches: the policy's gradient, added up in the parameters' buffers."""

import numpy as np
import torch
from torch import Tensor

from zerogap.config.loss import DistillationLossConfig, DPOLossConfig, LossConfig
from zerogap.config.train import TrainConfig
from zerogap.kernels import gradients_in_place
from zerogap.models import CausalLM
from zerogap.train.forward import score_candidates, score_micro_batch, scores
from zerogap.train.objective import Candidates, micro_batch_loss
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import UpdatePlan
from zerogap.train.preferences import weigh_preferences
from zerogap.train.requirements import is_top_k
from zerogap.train.step_state import StepState
from zerogap.train.teacher import Teacher


class PolicyGradient:
    """Computes; owns nothing. The buffers are the optimizer's."""

    def __init__(
        self,
        model: CausalLM,
        teacher: Teacher | None,
        config: TrainConfig,
        loss: LossConfig,
        *,
        vocab_limit: int,
    ) -> None:
        self._model, self._teacher = model, teacher
        self._config, self._loss = config, loss
        self._vocab_limit = vocab_limit
        self.off_policy_kl: float | None = None
        """``corrections.off_policy_kl``."""

    def accumulate(self, step: StepState, update: UpdatePlan, *, is_first: bool) -> float:
        """Add the update's gradient to the buffers; returns its loss.

        Args:
            step: reads and writes its columns.
            update: its micro-batches.
            is_first: no weight has changed in this step.
        """
        preferences = None
        if isinstance(self._loss, DPOLossConfig):
            self._score(step, update)
            preferences = weigh_preferences(step, update.is_member_B, self._loss)
            step.preferences.append(preferences)
        total = 0.0
        for batch in update.watching:
            with torch.no_grad():
                total += self._forward(step, update, batch, is_first=is_first).item()
            step.advance("update", batch)
        for batch in update.learning:
            loss = self._forward(step, update, batch, is_first=is_first)
            with step.spans.span("backward"), gradients_in_place():
                loss.backward()
            total += loss.item()
            step.advance("update", batch)
        # A preference's terms have its gradient and not its value.
        return total if preferences is None else float(preferences.losses_P.mean())

    def _score(self, step: StepState, update: UpdatePlan) -> None:
        """Log-probs at the weights as they are now: what a preference's weights depend on."""
        with step.spans.span("preferences"):
            for batch, log_probs_R in scores(
                self._model, update.micro_batches, step.samples, vocab_limit=self._vocab_limit
            ):
                step.log_probs_S[step.index.slots(batch)] = log_probs_R
                step.advance("preferences", batch)

    def _forward(
        self, step: StepState, update: UpdatePlan, batch: MicroBatch, *, is_first: bool
    ) -> Tensor:
        log_probs_R, entropy_R, candidates = self._ask(step, batch)
        slots_R = step.index.slots(batch)
        step.log_probs_S[slots_R] = log_probs_R.detach().numpy()
        step.entropy_S[slots_R] = entropy_R.numpy()
        if is_first:
            step.begin_at(slots_R)
        return micro_batch_loss(
            log_probs_R,
            step,
            batch,
            _at_targets(update.denominator_B, batch),
            self._loss,
            off_policy_kl=self.off_policy_kl,
            candidates=candidates,
        )

    def _ask(self, step: StepState, batch: MicroBatch) -> tuple[Tensor, Tensor, Candidates | None]:
        """(log-prob, entropy) of each target, and what else the loss is about."""
        if self._teacher is not None and is_top_k(self._loss):
            return self._ask_about_candidates(step, batch, self._teacher)
        with step.spans.span("forward"):
            log_probs_R, entropy_R = score_micro_batch(
                self._model,
                batch,
                step.samples,
                vocab_limit=self._vocab_limit,
                recompute=self._config.recompute,
            )
        return log_probs_R, entropy_R, None

    def _ask_about_candidates(
        self, step: StepState, batch: MicroBatch, teacher: Teacher
    ) -> tuple[Tensor, Tensor, Candidates]:
        assert isinstance(self._loss, DistillationLossConfig)
        with step.spans.span("teacher"):
            likeliest = teacher.top_k(batch, step.samples, self._loss.top_k)
        with step.spans.span("forward"):
            log_probs_R, entropy_R, found_RK = score_candidates(
                self._model,
                batch,
                step.samples,
                likeliest.ids_RK,
                vocab_limit=self._vocab_limit,
                recompute=self._config.recompute,
            )
        return log_probs_R, entropy_R, Candidates(found_RK, likeliest.log_probs_RK)


def _at_targets(values_B: np.ndarray, batch: MicroBatch) -> Tensor:
    return torch.from_numpy(values_B[batch.sample_R])
