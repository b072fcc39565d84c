"""One step on one model: samples in, updated weights out.

``Trainer.step`` reads as the algorithm: decide everything that depends on the whole batch, compute what must be
known before the weights move, then for each update accumulate the gradient of every micro-batch and apply it.

The model may be shared with an engine and is written in place, by the trainer only and only inside ``step``. When
``step`` raises before its first update the weights are as they were; the messages say so.

``old_log_probs`` says what the policy ratio is taken against.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from zerogap.config.loss import LossConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import CheckpointError, ConfigError
from zerogap.kernels import gradients_in_place
from zerogap.models import CausalLM
from zerogap.obs import Spans
from zerogap.train.advantages import decide_advantages
from zerogap.train.forward import score_micro_batch, scores
from zerogap.train.metrics import StepGradient, TrainMetrics, TrainProgress
from zerogap.train.objective import micro_batch_loss, samples_with_signal
from zerogap.train.old_log_probs import OldLogProbs
from zerogap.train.optimizer import Optimizer
from zerogap.train.packing import MicroBatch
from zerogap.train.participants import take_part
from zerogap.train.plan import UpdatePlan, pack_members, plan_update
from zerogap.train.schedule import learning_rate_at
from zerogap.train.scoring import score_samples
from zerogap.train.step_state import StepState
from zerogap.train.summary import summarise
from zerogap.types import Sample

_OPTIMIZER = "optimizer."


class Trainer:
    """Owns the optimizer and its state; trains ``model`` in place."""

    def __init__(
        self,
        model: CausalLM,
        config: TrainConfig,
        loss: LossConfig,
        *,
        total_steps: int,
        vocab_limit: int,
        reference: CausalLM | None = None,
    ) -> None:
        """A trainer at step 0.

        Args:
            model: fp32, its weights loaded.
            config: optimizer and packing.
            loss: objective.
            total_steps: steps of the run, for the schedule.
            vocab_limit: ids at or past it do not exist (the tokenizer's size, where the head is padded).
            reference: the frozen initial policy; given exactly when ``loss.needs_reference``.
        """
        if (reference is not None) != loss.needs_reference:
            given = "no reference model" if reference is None else "a reference model"
            needs = "needs" if loss.needs_reference else "does not need"
            msg = f"this {loss.kind} loss {needs} the frozen initial policy, and {given} was given; a reference goes with a KL penalty or with dpo: give both or neither"
            raise ConfigError(msg)
        self._model, self._reference = model, reference
        self._config, self._loss = config, loss
        self._total_steps, self._vocab_limit = total_steps, vocab_limit
        self._num_steps = 0
        self._optimizer = Optimizer(
            model,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            keeps_masters=model.is_bf16,
        )

    def step(
        self,
        samples: Sequence[Sample],
        *,
        exact_version: int | None = None,
        on_progress: Callable[[TrainProgress], None] | None = None,
    ) -> TrainMetrics:
        """Train once on ``samples``.

        Args:
            samples: any order; invalid outcomes and samples without loss tokens are left out and counted.
            exact_version: version of the weights as they are now, if what the engine reports under it are this
                trainer's own log-probs to the bit: exact numerics, and no penalty, bias or ban on the logits. Later updates
                then take those of samples that it drew and audit a share. None: score everything.
            on_progress: called after each micro-batch.

        Raises:
            DataError: no sample trains, or one cannot be scored.
            NumericsError: a reward, a log-prob or the gradient is not finite; names the record or the parameter.
        """
        step, old = self._begin(samples, exact_version, on_progress)
        learning_rate = self._learning_rate()
        losses, grad_norms = [], []
        for number, update in enumerate(step.updates):
            losses.append(self._accumulate(step, update, is_first=number == 0))
            if number == 0:
                old.settle()
            with step.spans.span("optimizer"):
                grad_norms.append(self._optimizer.update(learning_rate))
        self._num_steps += 1
        return summarise(
            step,
            losses=losses,
            grad_norms=grad_norms,
            audit=old.audit,
            learning_rate=learning_rate,
            max_rows=self._config.micro_batch_tokens,
        )

    def gradient(
        self,
        samples: Sequence[Sample],
        *,
        exact_version: int | None = None,
        on_progress: Callable[[TrainProgress], None] | None = None,
    ) -> StepGradient:
        """Loss and gradient of the first update that ``step`` would make with these arguments, without making it.

        Raises:
            DataError, NumericsError: as ``step``.
        """
        step, _ = self._begin(samples, exact_version, on_progress)
        loss = self._accumulate(step, step.updates[0], is_first=True)
        return StepGradient(
            loss=loss,
            grad_norm=self._optimizer.grad_norm(),
            tensors=self._optimizer.gradients(),
            num_updates=len(step.updates),
        )

    def score(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """Log-probs of every token that was sampled, whatever its outcome, at the sample's temperature.

        Returns:
            float32 [T] for each sample, NaN where the policy did not sample. No weight or gradient changes.
        """
        return score_samples(
            self._model,
            samples,
            vocab_limit=self._vocab_limit,
            micro_batch_tokens=self._config.micro_batch_tokens,
            share_prompts=self._config.share_prompts,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Everything but the weights that the next step depends on, as plain tensors.

        Moments are views: write or copy them before the next step.
        """
        optimizer = {_OPTIMIZER + name: t for name, t in self._optimizer.state_dict().items()}
        return {
            "num_steps": torch.tensor(self._num_steps),
            "torch_rng_state": torch.get_rng_state(),
            **optimizer,
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a ``state_dict``; the model's weights are loaded separately.

        Raises:
            CheckpointError: the state belongs to another model, or is none.
        """
        if missing := {"num_steps", "torch_rng_state"} - state.keys():
            msg = f"the trainer state lacks {sorted(missing)}: it is incomplete or not a trainer's; resume from another checkpoint"
            raise CheckpointError(msg)
        self._optimizer.load_state_dict(
            {n.removeprefix(_OPTIMIZER): t for n, t in state.items() if n.startswith(_OPTIMIZER)}
        )
        self._num_steps = int(state["num_steps"])
        torch.set_rng_state(state["torch_rng_state"])

    def _learning_rate(self) -> float:
        return learning_rate_at(
            self._num_steps,
            peak=self._config.learning_rate,
            schedule=self._config.schedule,
            warmup_steps=self._config.warmup_steps,
            total_steps=self._total_steps,
        )

    def _begin(
        self,
        samples: Sequence[Sample],
        exact_version: int | None,
        on_progress: Callable[[TrainProgress], None] | None,
    ) -> tuple[StepState, OldLogProbs]:
        """Everything that is decided and computed before the first update."""
        who = take_part(
            samples, max_updates=self._config.updates_per_step, vocab_limit=self._vocab_limit
        )
        step = StepState(samples, who, spans=Spans(), on_progress=on_progress)
        old = self._old_log_probs(step, exact_version)
        old.score()
        if self._reference is not None:
            self._score_reference(self._reference, step)
        step.advantages = decide_advantages(samples, who.is_kept_B, step.index, self._loss)
        self._plan(step)
        return step, old

    def _old_log_probs(self, step: StepState, exact_version: int | None) -> OldLogProbs:
        later = self._pack(step, step.who.update_B > 0)
        return OldLogProbs(
            self._model,
            step,
            later,
            exact_version=exact_version,
            audit_share=self._config.audit_share,
            seed=self._num_steps,
            vocab_limit=self._vocab_limit,
        )

    def _pack(self, step: StepState, is_member_B: np.ndarray) -> list[MicroBatch]:
        with step.spans.span("pack"):
            return pack_members(step.samples, is_member_B, self._config)

    def _score_reference(self, reference: CausalLM, step: StepState) -> None:
        batches = self._pack(step, step.who.is_kept_B)
        step.expect("reference", batches)
        # About as many rows; exactly so once the updates are planned.
        step.expect("update", batches)
        with step.spans.span("reference"):
            for batch, log_probs_R in scores(
                reference, batches, step.samples, vocab_limit=self._vocab_limit
            ):
                step.ref_log_probs_S[step.index.slots(batch)] = log_probs_R
                step.advance("reference", batch)

    def _plan(self, step: StepState) -> None:
        """All updates: their micro-batches and denominators."""
        has_signal_B = samples_with_signal(step, self._loss)
        with step.spans.span("pack"):
            step.updates = [
                plan_update(
                    step.samples,
                    step.who.update_B == number,
                    has_signal_B,
                    config=self._config,
                    loss=self._loss,
                )
                for number in range(step.who.num_updates)
            ]
        step.expect("update", [b for update in step.updates for b in update.micro_batches])

    def _accumulate(self, step: StepState, update: UpdatePlan, *, is_first: bool) -> float:
        """The update's loss; its gradient is in the buffers afterwards."""
        self._optimizer.zero_grad()
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
        return total

    def _forward(
        self, step: StepState, update: UpdatePlan, batch: MicroBatch, *, is_first: bool
    ) -> Tensor:
        with step.spans.span("forward"):
            log_probs_R, entropy_R = score_micro_batch(
                self._model,
                batch,
                step.samples,
                vocab_limit=self._vocab_limit,
                recompute=self._config.recompute,
            )
        slots_R = step.index.slots(batch)
        step.log_probs_S[slots_R] = log_probs_R.detach().numpy()
        step.entropy_S[slots_R] = entropy_R.numpy()
        if is_first:
            step.begin_at(slots_R)
        denominator_R = torch.from_numpy(update.denominator_B[batch.sample_R])
        return micro_batch_loss(log_probs_R, step, batch, denominator_R, self._loss)
