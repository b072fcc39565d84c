"""Forward and backward over an update's micro-batches: the policy's gradient, added up in the parameters' buffers."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms import Algorithm, DPOLoss, DPOTerms
from zerogap.kernels import to_host
from zerogap.train.columns import StepColumns, StepMeter
from zerogap.train.forward import score_candidates, score_micro_batch, scores
from zerogap.train.host_loss import backward, loss_and_gradients
from zerogap.train.objective import ModelOutputs, micro_batch_loss
from zerogap.train.packing import MicroBatch, UpdateBatches
from zerogap.train.passes import Passes
from zerogap.train.plan import StepPlan
from zerogap.train.preferences import weigh_preferences
from zerogap.train.teacher import TopK


class PolicyGradient:
    """The gradients of one step. Owns nothing: the buffers are the optimizer's, the columns the step's."""

    def __init__(
        self,
        passes: Passes,
        algorithm: Algorithm,
        plan: StepPlan,
        columns: StepColumns,
        meter: StepMeter,
    ) -> None:
        self._passes, self._algorithm = passes, algorithm
        self._compute = replace(passes.compute, adds_to_grad=True)
        self._plan, self._columns, self._meter = plan, columns, meter
        self.preferences: list[DPOTerms] = []
        """One for each update, if answers are compared."""

    def accumulate(self, update: int, batches: UpdateBatches) -> float:
        """Add an update's gradient to the buffers; returns its loss.

        Args:
            update: its number, from 0; at 0 no weight has changed in this step.
            batches: its micro-batches, or those of some of its leaves.
        """
        loss = self._algorithm.loss
        if isinstance(loss, DPOLoss) and len(self._plan.pairs_of(update)):
            return self._accumulate_preferences(update, batches, loss)
        return self._accumulate(batches, is_first=update == 0)

    def _accumulate(self, batches: UpdateBatches, *, is_first: bool) -> float:
        total = 0.0
        for batch in self._meter.counted("update", batches.without_gradient):
            with torch.no_grad():
                loss, _, _ = self._forward(batch, is_first=is_first)
            total += loss
        for batch in self._meter.counted("update", batches.with_gradient):
            loss, outputs, gradients = self._forward(batch, is_first=is_first)
            with self._meter.spans.span("backward"):
                backward(outputs, gradients)
            total += loss
        return total

    def _accumulate_preferences(self, update: int, batches: UpdateBatches, loss: DPOLoss) -> float:
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
        model, samples = self._passes.model, self._plan.samples
        counted = self._meter.counted("preferences", batches.all)
        with self._meter.spans.span("preferences"):
            for batch, log_probs_R in scores(model, counted, samples, compute=self._compute):
                slots_R = self._plan.tokens.index.slots(batch)
                self._columns.write(slots_R, {"log_probs_S": log_probs_R})

    def _forward(
        self, batch: MicroBatch, *, is_first: bool
    ) -> tuple[float, list[Tensor], list[np.ndarray | None]]:
        """The loss; the model outputs that it depends on, on the model's device; its gradient by each of them."""
        likeliest = self._likeliest(batch)
        with self._meter.spans.span("forward"):
            log_probs_R, entropy_R, *found_RK = self._log_probs(batch, likeliest)
        slots_R, columns = self._plan.tokens.index.slots(batch), self._columns
        columns.write(
            slots_R, {"log_probs_S": to_host(log_probs_R), "entropy_S": to_host(entropy_R)}
        )
        if is_first:
            columns.begin_at(slots_R)

        has_entropy = self._algorithm.entropy.coefficient != 0
        outputs = [log_probs_R, *([entropy_R] if has_entropy else []), *found_RK]

        def formula(log_probs_R: Tensor, *others: Tensor) -> Tensor:
            computed = ModelOutputs(
                log_probs_R=log_probs_R,
                entropy_R=others[0] if has_entropy else None,
                candidates_RK=others[-1] if likeliest is not None else None,
                teacher_RK=None if likeliest is None else torch.from_numpy(likeliest.log_probs_RK),
            )
            loss, found = micro_batch_loss(computed, self._plan, columns, batch, self._algorithm)
            columns.write(slots_R, found)
            return loss

        loss, gradients = loss_and_gradients(formula, outputs, learns=torch.is_grad_enabled())
        return loss, outputs, gradients

    def _likeliest(self, batch: MicroBatch) -> TopK | None:
        """The teacher's likeliest ids at each target's position, if the loss needs them."""
        teacher, config = self._passes.teacher, self._algorithm.teacher
        if teacher is None or config is None or not config.is_top_k:
            return None
        with self._meter.spans.span("teacher"):
            return teacher.top_k(
                batch,
                self._plan.samples,
                config.top_k,
                max_rows=self._passes.config.micro_batch_tokens,
                compute=self._compute,
            )

    def _log_probs(self, batch: MicroBatch, likeliest: TopK | None) -> tuple[Tensor, ...]:
        """(log-prob, entropy) of each target, and log-probs of the likeliest ids, if any are given."""
        model, samples = self._passes.model, self._plan.samples
        how = {"compute": self._compute, "recompute": self._passes.config.recompute}
        if likeliest is None:
            return score_micro_batch(model, batch, samples, **how)
        return score_candidates(model, batch, samples, likeliest.ids_RK, **how)
