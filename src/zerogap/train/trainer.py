"""One step on one model: samples in, updated weights out.

``Trainer.step`` reads as the algorithm: decide everything that depends on the whole batch, compute what must be
known before the weights move, then for each update accumulate the gradient of every micro-batch and apply it.

The model may be shared with an engine and is written in place, by the trainer only and only inside ``step``. When
``step`` raises before its first update the weights are as they were; the messages say so.

``old_log_probs`` says what the policy ratio is taken against.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from zerogap.config.corrections import CorrectionsConfig
from zerogap.config.loss import LossConfig, PPOLossConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import CheckpointError
from zerogap.models import CausalLM
from zerogap.train.critic import Critic
from zerogap.train.metrics import StepGradient, TrainMetrics, TrainProgress
from zerogap.train.old_log_probs import OldLogProbs
from zerogap.train.optimizer import Optimizer
from zerogap.train.policy_gradient import PolicyGradient
from zerogap.train.preparation import Preparation
from zerogap.train.requirements import check_corrections, check_models
from zerogap.train.schedule import learning_rate_at
from zerogap.train.scoring import score_samples
from zerogap.train.step_state import StepState
from zerogap.train.summary import summarise, summarise_critic
from zerogap.train.teacher import Teacher
from zerogap.types import Sample

_OPTIMIZER, _CRITIC = "optimizer.", "critic."
_NONE = CorrectionsConfig()


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
        corrections: CorrectionsConfig = _NONE,
        reference: CausalLM | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """A trainer at step 0.

        Args:
            model: fp32, its weights loaded.
            config: optimizer and packing.
            loss: objective.
            total_steps: steps of the run, for the schedule.
            vocab_limit: ids at or past it do not exist (the tokenizer's size, where the head is padded).
            corrections: of samples that another policy drew.
            reference: the frozen initial policy; given exactly when ``loss.needs_reference``.
            teacher: given exactly when the loss is distillation.
        """
        check_models(loss, reference, teacher)
        self.model, self._config, self._loss = model, config, loss
        self._total_steps, self._vocab_limit = total_steps, vocab_limit
        self._num_steps = 0
        self.is_torn = False
        """A step failed after one of its updates was applied: weights and state are of no step, and not to be saved."""
        self.critic = (
            Critic(model, loss.critic, config) if isinstance(loss, PPOLossConfig) else None
        )
        self._preparation = Preparation(
            model=model,
            reference=reference,
            teacher=teacher,
            critic=self.critic,
            config=config,
            loss=loss,
            corrections=corrections,
            vocab_limit=vocab_limit,
        )
        self._gradient = PolicyGradient(model, teacher, config, loss, vocab_limit=vocab_limit)
        self.use_corrections(corrections)
        self._optimizer = Optimizer(
            model,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            keeps_masters=model.is_bf16,
        )

    def use_corrections(self, corrections: CorrectionsConfig) -> None:
        """Correct with these, from the next step on.

        Raises:
            ConfigError: this loss has nothing that they could correct.
        """
        check_corrections(self._loss, corrections)
        self._preparation = replace(self._preparation, corrections=corrections)
        self._gradient.off_policy_kl = corrections.off_policy_kl

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
            NumericsError: a reward, a log-prob or the gradient is not finite; names the record or the parameter. See ``is_torn``.
        """
        step, old = self._begin(samples, exact_version, on_progress)
        learning_rate = self._learning_rate()
        is_critic_alone = self.critic is not None and self.critic.is_alone(self._num_steps)
        losses, grad_norms, critic_updates = [], [], []
        for number, update in enumerate(step.updates):
            self._optimizer.zero_grad()
            losses.append(self._gradient.accumulate(step, update, is_first=number == 0))
            if number == 0:
                old.settle()
            if not is_critic_alone:
                with step.spans.span("optimizer"):
                    grad_norms.append(self._optimizer.update(learning_rate))
                self.is_torn = True
            if self.critic is not None:
                critic_updates.append(self.critic.update(step, update, step_number=self._num_steps))
                self.is_torn = True
        self._num_steps += 1
        metrics = summarise(
            step,
            losses=losses,
            grad_norms=grad_norms,
            critic=summarise_critic(step, critic_updates, is_alone=is_critic_alone)
            if critic_updates
            else None,
            audit=old.audit,
            learning_rate=learning_rate,
            max_rows=self._config.micro_batch_tokens,
        )
        self.is_torn = False
        return metrics

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
        self._optimizer.zero_grad()
        loss = self._gradient.accumulate(step, step.updates[0], is_first=True)
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
            self.model,
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
        critic = {} if self.critic is None else self.critic.state_dict()
        critic = {_CRITIC + name: t for name, t in critic.items()}
        return {
            "num_steps": torch.tensor(self._num_steps),
            "torch_rng_state": torch.get_rng_state(),
            **optimizer,
            **critic,
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a ``state_dict``; the model's weights are loaded separately.

        Raises:
            CheckpointError: the state belongs to another model, or is none.
        """
        if missing := {"num_steps", "torch_rng_state"} - state.keys():
            msg = f"the trainer state lacks {sorted(missing)}: it is incomplete or not a trainer's; resume from another checkpoint"
            raise CheckpointError(msg)
        critic = {n.removeprefix(_CRITIC): t for n, t in state.items() if n.startswith(_CRITIC)}
        if self.critic is not None:
            self.critic.load_state_dict(critic)
        elif critic:
            msg = f'the trainer state has a critic ({len(critic)} tensors) and this loss trains none: it is of a run with another loss; resume with loss.kind = "ppo"'
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
        return self._preparation.begin(
            samples,
            step_number=self._num_steps,
            exact_version=exact_version,
            on_progress=on_progress,
        )
