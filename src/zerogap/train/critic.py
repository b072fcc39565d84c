"""A second model that learns what a state is worth: the critic of PPO.

A trunk that starts as a copy of the policy, and a value head of zeros: at first every value is 0, so the first advantages are
plain returns. The value of a token is that of the state before it is drawn, so it comes from the row that predicts the token.
R targets of a micro-batch, D model dim.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from zerogap.algorithms import reduce_loss, value_surrogate
from zerogap.config.loss import CriticConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import CheckpointError
from zerogap.kernels import gradients_in_place, linear
from zerogap.models import CausalLM
from zerogap.train.attention import PackedAttention
from zerogap.train.optimizer import Optimizer
from zerogap.train.packing import MicroBatch
from zerogap.train.plan import UpdatePlan
from zerogap.train.schedule import learning_rate_at
from zerogap.train.step_state import StepState

_MODEL, _OPTIMIZER = "model.", "optimizer."


class ValueModel(nn.Module):
    """One number a row."""

    def __init__(self, policy: CausalLM) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy)
        if not policy.config.tie_word_embeddings:
            # Nothing asks it for a token: no memory for a head, its gradient and two moments.
            del self.trunk.lm_head
        self.value_head = nn.Parameter(torch.zeros(policy.config.hidden_size))
        """[D]"""

    def forward(self, batch: MicroBatch, *, recompute: bool = False) -> Tensor:
        """float32 [R]: the value before each target."""
        hidden_TD = self.trunk(
            batch.token_ids_T,
            batch.positions_T,
            PackedAttention(batch.layout, self.trunk.config.attention_scale),
            recompute=recompute and torch.is_grad_enabled(),
        )
        # Rows first: a row that predicts several targets has one value.
        value_T = linear(hidden_TD, self.value_head[None]).squeeze(1)
        return value_T.index_select(0, batch.source_row_R)


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

    def is_alone(self, step_number: int) -> bool:
        """Whether this step (from 0) trains the critic and leaves the policy as it is."""
        return step_number < self._config.warmup_steps

    @torch.no_grad()
    def score(self, step: StepState, batches: Sequence[MicroBatch]) -> None:
        """Write the values at the start of the step."""
        with step.spans.span("values"):
            for batch in batches:
                step.values_S[step.index.slots(batch)] = self.model(batch).numpy()
                step.advance("values", batch)

    def update(
        self, step: StepState, update: UpdatePlan, *, step_number: int
    ) -> tuple[float, float]:
        """One update on the targets of the policy's: (loss, gradient norm before clipping).

        Args:
            step: its returns are what is learned.
            update: its micro-batches, those without a policy gradient too, and its denominator.
            step_number: from 0; for the warm-up of the learning rate.
        """
        self._optimizer.zero_grad()
        total = 0.0
        with step.spans.span("critic"):
            for batch in update.micro_batches:
                loss = self._loss(step, update, batch)
                with gradients_in_place():
                    loss.backward()
                total += loss.item()
                step.advance("critic", batch)
            norm = self._optimizer.update(self._learning_rate(step_number))
        return total, norm

    def _learning_rate(self, step_number: int) -> float:
        return learning_rate_at(
            step_number,
            peak=self._config.learning_rate,
            schedule="constant",
            warmup_steps=self._train.warmup_steps,
            total_steps=step_number + 1,
        )

    def _loss(self, step: StepState, update: UpdatePlan, batch: MicroBatch) -> Tensor:
        returns_S, slots_R = step.advantages.returns_S, step.index.slots(batch)
        assert returns_S is not None, "a critic learns from the returns that its values gave"
        mask_R = torch.ones(len(slots_R), dtype=torch.bool)
        surrogate = value_surrogate(
            self.model(batch, recompute=self._train.recompute).double(),
            torch.from_numpy(step.values_S[slots_R]).double(),
            torch.from_numpy(returns_S[slots_R]),
            mask_R,
            value_clip=self._config.value_clip,
            name_token=lambda target: step.index.name(int(slots_R[target])),
        )
        step.is_value_clipped_S[slots_R] = surrogate.is_clipped_T.numpy()
        denominator_R = torch.from_numpy(update.denominator_B[batch.sample_R])
        return reduce_loss(surrogate.numerator_T, denominator_R, mask_R)

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, moments and the number of updates. Views: write or copy them before the next step."""
        weights = {_MODEL + name: p.detach() for name, p in self.model.named_parameters()}
        moments = {_OPTIMIZER + name: t for name, t in self._optimizer.state_dict().items()}
        return weights | moments

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a ``state_dict``.

        Raises:
            CheckpointError: it belongs to another critic, or is none.
        """
        given = {n.removeprefix(_MODEL): t for n, t in state.items() if n.startswith(_MODEL)}
        mine = dict(self.model.named_parameters())
        wrong = sorted(mine.keys() ^ given.keys())
        wrong += [name for name in mine.keys() & given.keys() if mine[name].shape != given[name].shape]  # fmt: skip
        if wrong:
            msg = f"the critic's state does not belong to this model: {len(wrong)} weights are missing, surplus or of another shape (first: {wrong[0]}); resume with the model and the loss that wrote it"
            raise CheckpointError(msg)
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(given[name])
        self._optimizer.load_state_dict(
            {n.removeprefix(_OPTIMIZER): t for n, t in state.items() if n.startswith(_OPTIMIZER)}
        )
