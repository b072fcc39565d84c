"""Forward and backward over an update's micro-batches: the policy's gradient, added up in the parameters' buffers."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms import DPOTerms
from zerogap.config.loss import DistillationLossConfig, DPOLossConfig, LossConfig
from zerogap.config.train import TrainConfig
from zerogap.kernels import Compute, to_host
from zerogap.models import CausalLM
from zerogap.train.columns import StepColumns, StepMeter
from zerogap.train.forward import score_candidates, score_micro_batch, scores
from zerogap.train.host_loss import hand_back, loss_and_gradients
from zerogap.train.objective import Candidates, micro_batch_loss
from zerogap.train.packing import MicroBatch, UpdateBatches
from zerogap.train.plan import StepPlan
from zerogap.train.preferences import weigh_preferences
from zerogap.train.requirements import is_top_k
from zerogap.train.teacher import Teacher, TopK


class PolicyGradient:
    """The gradients of one step. Owns nothing: the buffers are the optimizer's, the columns the step's."""

    def __init__(
        self,
        model: CausalLM,
        teacher: Teacher | None,
        config: TrainConfig,
        loss: LossConfig,
        *,
        compute: Compute,
        plan: StepPlan,
        columns: StepColumns,
        meter: StepMeter,
    ) -> None:
        self._model, self._teacher = model, teacher
        self._config, self._loss = config, loss
        self._compute = replace(compute, adds_to_grad=True)
        self._plan, self._columns, self._meter = plan, columns, meter
        self.preferences: list[DPOTerms] = []
        """One for each update, if answers are compared."""

    def accumulate(self, update: int, batches: UpdateBatches) -> float:
        """Add an update's gradient to the buffers; returns its loss.

        Args:
            update: its number, from 0; at 0 no weight has changed in this step.
            batches: its micro-batches, or those of some of its leaves.
        """
        if isinstance(self._loss, DPOLossConfig) and len(self._plan.pairs_of(update)):
            return self._accumulate_preferences(update, batches, self._loss)
        return self._accumulate(batches, is_first=update == 0)

    def _accumulate(self, batches: UpdateBatches, *, is_first: bool) -> float:
        total = 0.0
        for batch in batches.without_gradient:
            with torch.no_grad():
                loss, _, _ = self._forward(batch, is_first=is_first)
            total += loss
            self._meter.advance("update", batch)
        for batch in batches.with_gradient:
            loss, answers, gradients = self._forward(batch, is_first=is_first)
            with self._meter.spans.span("backward"):
                hand_back(answers, gradients)
            total += loss
            self._meter.advance("update", batch)
        return total

    def _accumulate_preferences(
        self, update: int, batches: UpdateBatches, loss: DPOLossConfig
    ) -> float:
        """Weigh each log-prob by the current policy. The weighted sum has the gradient of the pairs' loss, but not its value."""
        self._score(batches)
        plan, columns = self._plan, self._columns
        terms = weigh_preferences(plan, columns.log_probs_S, update, loss)
        self.preferences.append(terms)
        tokens = plan.tokens
        members = np.flatnonzero(tokens.trains_S & tokens.index.spread(plan.is_member_B(update)))
        weights_S = -tokens.index.spread(terms.coefficient_B)
        columns.write(members, {"advantages_S": weights_S[members]})
        self._accumulate(batches, is_first=update == 0)
        return float(terms.losses_P.sum() / plan.denominator_B[plan.is_member_B(update)][0])

    def _score(self, batches: UpdateBatches) -> None:
        """Write log-probs under the current weights."""
        with self._meter.spans.span("preferences"):
            for batch, log_probs_R in scores(
                self._model, batches.all, self._plan.samples, compute=self._compute
            ):
                slots_R = self._plan.tokens.index.slots(batch)
                self._columns.write(slots_R, {"log_probs_S": log_probs_R})
                self._meter.advance("preferences", batch)

    def _forward(
        self, batch: MicroBatch, *, is_first: bool
    ) -> tuple[float, list[Tensor], list[np.ndarray | None]]:
        """The loss; the model outputs that it depends on, on the model's device; its gradient by each of them."""
        likeliest = self._likeliest(batch)
        with self._meter.spans.span("forward"):
            log_probs_R, entropy_R, *found_RK = self._ask(batch, likeliest)
        slots_R, columns = self._plan.tokens.index.slots(batch), self._columns
        columns.write(
            slots_R, {"log_probs_S": to_host(log_probs_R), "entropy_S": to_host(entropy_R)}
        )
        if is_first:
            columns.begin_at(slots_R)

        def formula(log_probs_R: Tensor, *found_RK: Tensor) -> Tensor:
            candidates = None
            if likeliest is not None:
                candidates = Candidates(found_RK[0], torch.from_numpy(likeliest.log_probs_RK))
            loss = micro_batch_loss(
                log_probs_R, self._plan, columns, batch, self._loss, candidates=candidates
            )
            columns.write(slots_R, loss.found)
            return loss.total

        answers = [log_probs_R, *found_RK]
        loss, gradients = loss_and_gradients(formula, answers, learns=torch.is_grad_enabled())
        return loss, answers, gradients

    def _likeliest(self, batch: MicroBatch) -> TopK | None:
        """The teacher's likeliest ids at each target's position, if the loss needs them."""
        if self._teacher is None or not is_top_k(self._loss):
            return None
        assert isinstance(self._loss, DistillationLossConfig)
        with self._meter.spans.span("teacher"):
            return self._teacher.top_k(
                batch, self._plan.samples, self._loss.top_k, compute=self._compute
            )

    def _ask(self, batch: MicroBatch, likeliest: TopK | None) -> tuple[Tensor, ...]:
        """(log-prob, entropy) of each target, and log-probs of the likeliest ids, if any are given."""
        how = {"compute": self._compute, "recompute": self._config.recompute}
        if likeliest is None:
            return score_micro_batch(self._model, batch, self._plan.samples, **how)
        return score_candidates(self._model, batch, self._plan.samples, likeliest.ids_RK, **how)
