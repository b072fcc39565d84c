"""The critic of PPO: a second model, which learns the value of each state.

Its trunk starts as a copy of the policy and its value head as zeros: at first every value is 0, so the first advantages are
plain returns. A token's value belongs to the state before the token is drawn, so the row that predicts the token gives it.
R targets of a micro-batch, D model dim.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from zerogap.algorithms import CriticAdvantage, reduce_loss, value_surrogate
from zerogap.config.train import TrainConfig
from zerogap.kernels import PLAIN, Compute, linear, to_device, to_host
from zerogap.models import CausalLM
from zerogap.train.columns import StepMeter
from zerogap.train.forward import hidden_rows
from zerogap.train.host_loss import backward, loss_and_gradients
from zerogap.train.optimizer import (
    Optimizer,
    check_state,
    learning_rate_at,
    with_prefix,
    without_prefix,
)
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import StepPlan
from zerogap.weights import trained_weights

_MODEL, _OPTIMIZER = "model.", "optimizer."


class ValueModel(nn.Module):
    """A trunk and a head that gives one number for each row."""

    def __init__(self, policy: CausalLM) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy)
        if not policy.config.tie_word_embeddings:
            # It predicts no tokens, so a head would waste memory on weights, gradient and two moments.
            del self.trunk.lm_head
        self.value_head = nn.Parameter(torch.zeros(policy.config.hidden_size, device=policy.device))
        """[D]"""

    def forward(
        self, batch: MicroBatch, *, compute: Compute = PLAIN, recompute: bool = False
    ) -> Tensor:
        """float32 [R]: the value before each target."""
        hidden_TD = hidden_rows(self.trunk, batch, compute=compute, recompute=recompute)
        # Compute per row: a row that predicts several targets has one value.
        value_T = linear(hidden_TD, self.value_head[None], compute=compute).squeeze(1)
        return value_T.index_select(0, to_device(batch.source_row_R, value_T.device))


@dataclass(frozen=True, eq=False)
class CriticUpdate:
    """One update of a critic."""

    loss: float
    grad_norm: float
    """Before clipping."""
    is_clipped_S: np.ndarray
    """bool [S]: targets whose value was clipped, so that it got no gradient."""


class Critic:
    """Owns the value model and its optimizer."""

    def __init__(self, policy: CausalLM, config: CriticAdvantage, train: TrainConfig) -> None:
        """A critic whose values are all 0.

        Args:
            policy: what its trunk is copied from.
            config: its learning rate and clip.
            train: settings of its optimizer, warm-up and recomputation; the policy's.
        """
        self._config, self._train = config, train
        self.model = ValueModel(policy)
        self._optimizer = Optimizer(
            self.model,
            betas=train.betas,
            eps=train.eps,
            weight_decay=train.weight_decay,
            max_grad_norm=train.max_grad_norm,
            keeps_masters=policy.is_bf16,
        )

    @torch.no_grad()
    def values(
        self, batches: Iterable[MicroBatch], *, compute: Compute = PLAIN
    ) -> Iterator[tuple[MicroBatch, np.ndarray]]:
        """Each micro-batch with the values before its targets, float32 [R]."""
        for batch in batches:
            yield batch, to_host(self.model(batch, compute=compute))

    def update(
        self,
        plan: StepPlan,
        batches: Sequence[MicroBatch],
        meter: StepMeter,
        *,
        compute: Compute = PLAIN,
    ) -> CriticUpdate:
        """One update, on the targets of the policy's update.

        Args:
            plan: its returns are the targets.
            batches: all micro-batches of the update, including those without a policy gradient.
            meter: gets time and progress.
            compute: how the passes compute.
        """
        self._optimizer.zero_grad()
        compute = replace(compute, adds_to_grad=True)
        total, is_clipped_S = 0.0, np.zeros(len(plan.tokens.trains_S), bool)
        with meter.spans.span("critic"):
            for batch in meter.counted("critic", batches):
                slots_R = plan.tokens.index.slots(batch)
                values_R = self.model(batch, compute=compute, recompute=self._train.recompute)
                formula = partial(self._loss, plan, batch, slots_R, is_clipped_S)
                loss, gradients = loss_and_gradients(formula, [values_R])
                backward([values_R], gradients)
                total += loss
            learning_rate = learning_rate_at(
                plan.step_number,
                peak=self._config.learning_rate,
                schedule="constant",
                warmup_steps=self._train.warmup_steps,
                total_steps=plan.step_number + 1,
            )
            norm = self._optimizer.update(learning_rate)
        return CriticUpdate(total, norm, is_clipped_S)

    def _loss(
        self,
        plan: StepPlan,
        batch: MicroBatch,
        slots_R: np.ndarray,
        is_clipped_S: np.ndarray,
        values_R: Tensor,
    ) -> Tensor:
        """The micro-batch's share of the loss; marks clipped targets in ``is_clipped_S``."""
        returns_S, values_S = plan.advantages.returns_S, plan.values_S
        assert returns_S is not None, "a critic has returns"
        assert values_S is not None, "a critic has values"
        mask_R = torch.ones(len(slots_R), dtype=torch.bool)
        surrogate = value_surrogate(
            values_R.double(),
            torch.from_numpy(values_S[slots_R]).double(),
            torch.from_numpy(returns_S[slots_R]),
            mask_R,
            value_clip=self._config.value_clip,
            name_token=lambda target: plan.tokens.index.name(int(slots_R[target])),
        )
        denominator_R = torch.from_numpy(plan.denominator_B[batch.sample_R])
        is_clipped_S[slots_R] = surrogate.is_clipped_T.numpy()
        return reduce_loss(surrogate.numerator_T, denominator_R, mask_R)

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, moments and the number of updates. Views: write or copy them before the next step."""
        weights = with_prefix(_MODEL, trained_weights(self.model))
        return weights | with_prefix(_OPTIMIZER, self._optimizer.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a ``state_dict``.

        Raises:
            CheckpointError: it belongs to another critic, or is not a critic's state.
        """
        check_state(self.state_dict(), state, "critic")
        for name, weight in with_prefix(_MODEL, trained_weights(self.model)).items():
            weight.copy_(state[name])
        self._optimizer.load_state_dict(without_prefix(_OPTIMIZER, state))
