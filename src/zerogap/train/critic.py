"""A second model that learns what a state is worth: the critic of PPO.

A trunk that starts as a copy of the policy, and a value head of zeros: at first every value is 0, so the first advantages are
plain returns. The value of a token is that of the state before it is drawn, so it comes from the row that predicts the token.
R targets of a micro-batch, D model dim.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from zerogap.algorithms import reduce_loss, value_surrogate
from zerogap.config.loss import CriticConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import CheckpointError
from zerogap.kernels import PLAIN, Compute, linear, to_device, to_host
from zerogap.models import CausalLM
from zerogap.train.columns import StepMeter
from zerogap.train.forward import hidden_rows
from zerogap.train.host_loss import hand_back, loss_and_gradients
from zerogap.train.optimizer import Optimizer, learning_rate_at
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import StepPlan
from zerogap.weights import trained_weights

_MODEL, _OPTIMIZER = "model.", "optimizer."


class ValueModel(nn.Module):
    """One number a row."""

    def __init__(self, policy: CausalLM) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy)
        if not policy.config.tie_word_embeddings:
            # Nothing asks it for a token: no memory for a head, its gradient and two moments.
            del self.trunk.lm_head
        self.value_head = nn.Parameter(torch.zeros(policy.config.hidden_size, device=policy.device))
        """[D]"""

    def forward(
        self, batch: MicroBatch, *, compute: Compute = PLAIN, recompute: bool = False
    ) -> Tensor:
        """float32 [R]: the value before each target."""
        hidden_TD = hidden_rows(self.trunk, batch, compute=compute, recompute=recompute)
        # Rows first: a row that predicts several targets has one value.
        value_T = linear(hidden_TD, self.value_head[None], compute=compute).squeeze(1)
        return value_T.index_select(0, to_device(batch.source_row_R, value_T.device))


@dataclass(frozen=True, eq=False)
class CriticUpdate:
    """One update of a critic."""

    loss: float
    grad_norm: float
    """Before clipping."""
    is_clipped_S: np.ndarray
    """bool [S]: targets whose value had moved too far to learn more."""


class Critic:
    """Owns the value model and its optimizer."""

    def __init__(self, policy: CausalLM, config: CriticConfig, train: TrainConfig) -> None:
        """A critic that knows nothing yet.

        Args:
            policy: what its trunk is copied from.
            config: its learning rate and clip.
            train: how its optimizer averages, clips and decays, and how it is packed: like the policy's.
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
        """One update on the targets of the policy's.

        Args:
            plan: its returns are what is learned.
            batches: of the update, those without a policy gradient too.
            meter: gets time and progress.
            compute: how.
        """
        self._optimizer.zero_grad()
        compute = replace(compute, adds_to_grad=True)
        total, is_clipped_S = 0.0, np.zeros(len(plan.tokens.trains_S), bool)
        with meter.spans.span("critic"):
            for batch in batches:
                slots_R = plan.tokens.index.slots(batch)
                values_R = self.model(batch, compute=compute, recompute=self._train.recompute)
                formula = partial(self._loss, plan, batch, slots_R, is_clipped_S)
                loss, gradients = loss_and_gradients(formula, [values_R])
                hand_back([values_R], gradients)
                total += loss
                meter.advance("critic", batch)
            norm = self._optimizer.update(self._learning_rate(plan.step_number))
        return CriticUpdate(total, norm, is_clipped_S)

    def _learning_rate(self, step_number: int) -> float:
        return learning_rate_at(
            step_number,
            peak=self._config.learning_rate,
            schedule="constant",
            warmup_steps=self._train.warmup_steps,
            total_steps=step_number + 1,
        )

    def _loss(
        self,
        plan: StepPlan,
        batch: MicroBatch,
        slots_R: np.ndarray,
        is_clipped_S: np.ndarray,
        values_R: Tensor,
    ) -> Tensor:
        """The micro-batch's share of the loss; notes whose value had moved too far."""
        returns_S, values_S = plan.advantages.returns_S, plan.values_S
        assert returns_S is not None, "a critic learns from the returns that its values gave"
        assert values_S is not None, "a critic learns from the returns that its values gave"
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
        weights = {_MODEL + name: t for name, t in trained_weights(self.model).items()}
        moments = {_OPTIMIZER + name: t for name, t in self._optimizer.state_dict().items()}
        return weights | moments

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a ``state_dict``.

        Raises:
            CheckpointError: it belongs to another critic, or is none.
        """
        given = {n.removeprefix(_MODEL): t for n, t in state.items() if n.startswith(_MODEL)}
        mine = trained_weights(self.model)
        wrong = sorted(mine.keys() ^ given.keys())
        wrong += [name for name in mine.keys() & given.keys() if mine[name].shape != given[name].shape]  # fmt: skip
        if wrong:
            msg = f"the critic's state does not belong to this model: {len(wrong)} weights are missing, surplus or of another shape (first: {wrong[0]}); resume with the model and the loss that wrote it"
            raise CheckpointError(msg)
        for name, weight in mine.items():
            weight.copy_(given[name])
        self._optimizer.load_state_dict(
            {n.removeprefix(_OPTIMIZER): t for n, t in state.items() if n.startswith(_OPTIMIZER)}
        )
