"""Forward and backward of an update's micro-batches: the policy's gradient, added up in the parameters' buffers."""

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms import DPOTerms
from zerogap.config.loss import DistillationLossConfig, DPOLossConfig, LossConfig
from zerogap.config.train import TrainConfig
from zerogap.kernels import gradients_in_place
from zerogap.models import CausalLM
from zerogap.train.columns import StepColumns, StepMeter
from zerogap.train.forward import score_candidates, score_micro_batch, scores
from zerogap.train.objective import Candidates, micro_batch_loss
from zerogap.train.packing import MicroBatch, UpdateBatches
from zerogap.train.plan import StepPlan
from zerogap.train.preferences import weigh_preferences
from zerogap.train.requirements import is_top_k
from zerogap.train.teacher import Teacher


class PolicyGradient:
    """Of one step. Owns nothing: the buffers are the optimizer's, the columns the step's."""

    def __init__(
        self,
        model: CausalLM,
        teacher: Teacher | None,
        config: TrainConfig,
        loss: LossConfig,
        *,
        vocab_limit: int,
        plan: StepPlan,
        columns: StepColumns,
        meter: StepMeter,
    ) -> None:
        self._model, self._teacher = model, teacher
        self._config, self._loss = config, loss
        self._vocab_limit = vocab_limit
        self._plan, self._columns, self._meter = plan, columns, meter
        self.preferences: list[DPOTerms] = []
        """One an update, where answers are compared."""

    def accumulate(self, update: int, batches: UpdateBatches) -> float:
        """Add an update's gradient to the buffers; returns its loss.

        Args:
            update: its number; no weight has changed in this step before the first, 0.
            batches: its micro-batches, or those of some of its leaves.
        """
        if isinstance(self._loss, DPOLossConfig) and len(self._plan.pairs_of(update)):
            return self._accumulate_preferences(update, batches, self._loss)
        return self._accumulate(batches, is_first=update == 0)

    def _accumulate(self, batches: UpdateBatches, *, is_first: bool) -> float:
        total = 0.0
        for batch in batches.watching:
            with torch.no_grad():
                total += self._forward(batch, is_first=is_first).item()
            self._meter.advance("update", batch)
        for batch in batches.learning:
            loss = self._forward(batch, is_first=is_first)
            with self._meter.spans.span("backward"), gradients_in_place():
                loss.backward()
            total += loss.item()
            self._meter.advance("update", batch)
        return total

    def _accumulate_preferences(
        self, update: int, batches: UpdateBatches, loss: DPOLossConfig
    ) -> float:
        """The weight of each log-prob is that of the weights as they are now. Its terms have a pair's gradient, not its value."""
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
        """Log-probs at the weights as they are now."""
        with self._meter.spans.span("preferences"):
            for batch, log_probs_R in scores(
                self._model, batches.all, self._plan.samples, vocab_limit=self._vocab_limit
            ):
                slots_R = self._plan.tokens.index.slots(batch)
                self._columns.write(slots_R, {"log_probs_S": log_probs_R})
                self._meter.advance("preferences", batch)

    def _forward(self, batch: MicroBatch, *, is_first: bool) -> Tensor:
        log_probs_R, entropy_R, candidates = self._ask(batch)
        slots_R, columns = self._plan.tokens.index.slots(batch), self._columns
        found = {"log_probs_S": log_probs_R.detach().numpy(), "entropy_S": entropy_R.numpy()}
        columns.write(slots_R, found)
        if is_first:
            columns.begin_at(slots_R)
        loss = micro_batch_loss(
            log_probs_R, self._plan, columns, batch, self._loss, candidates=candidates
        )
        columns.write(slots_R, loss.found)
        return loss.total

    def _ask(self, batch: MicroBatch) -> tuple[Tensor, Tensor, Candidates | None]:
        """(log-prob, entropy) of each target, and what else the loss is about."""
        if self._teacher is not None and is_top_k(self._loss):
            return self._ask_about_candidates(batch, self._teacher)
        with self._meter.spans.span("forward"):
            log_probs_R, entropy_R = score_micro_batch(
                self._model,
                batch,
                self._plan.samples,
                vocab_limit=self._vocab_limit,
                recompute=self._config.recompute,
            )
        return log_probs_R, entropy_R, None

    def _ask_about_candidates(
        self, batch: MicroBatch, teacher: Teacher
    ) -> tuple[Tensor, Tensor, Candidates]:
        assert isinstance(self._loss, DistillationLossConfig)
        with self._meter.spans.span("teacher"):
            likeliest = teacher.top_k(batch, self._plan.samples, self._loss.top_k)
        with self._meter.spans.span("forward"):
            log_probs_R, entropy_R, found_RK = score_candidates(
                self._model,
                batch,
                self._plan.samples,
                likeliest.ids_RK,
                vocab_limit=self._vocab_limit,
                recompute=self._config.recompute,
            )
        return log_probs_R, entropy_R, Candidates(found_RK, likeliest.log_probs_RK)
