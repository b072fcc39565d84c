"""One step on one model in this process: a plan in, updated weights out.

``NativeTrainer.step`` reads as the algorithm: for each update accumulate the gradient of every micro-batch and apply it.
An engine may share the model. Only the trainer writes it, in place and only inside ``step``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from zerogap.algorithms import Algorithm, CorrectionsConfig, algorithm_problems
from zerogap.config.reward import RewardPart
from zerogap.config.train import TrainConfig
from zerogap.errors import CheckpointError, ConfigError, DataError
from zerogap.kernels import Compute, Gemm
from zerogap.models import CausalLM
from zerogap.tensor_file import save_tensors
from zerogap.train.columns import StepColumns, StepMeter
from zerogap.train.critic import Critic
from zerogap.train.metrics import (
    OldLogProbAudit,
    StepGradient,
    TrainMetrics,
    TrainProgress,
)
from zerogap.train.old_log_probs import compare
from zerogap.train.optimizer import Optimizer, learning_rate_at, with_prefix, without_prefix
from zerogap.train.packing import UpdateBatches
from zerogap.train.passes import Passes, StepScore
from zerogap.train.plan import StepPlan
from zerogap.train.planning import plan_step
from zerogap.train.policy_gradient import PolicyGradient
from zerogap.train.refreshed_model import RefreshedModel
from zerogap.train.rollback import Rollback
from zerogap.train.scoring import score_samples
from zerogap.train.summary import summarise, summarise_critic
from zerogap.train.teacher import Teacher
from zerogap.types import Sample
from zerogap.weights import trained_weights

_FILE = "trainer.safetensors"
_OPTIMIZER, _CRITIC, _REFERENCE, _TEACHER = "optimizer.", "critic.", "reference.", "teacher."
_BEFORE, _WEIGHTS = "before.", "weights."
_GRPO = Algorithm()


class NativeTrainer:
    """A ``Trainer``. Owns the optimizer and its state; trains ``model`` in place."""

    name = "trainer"

    def __init__(
        self,
        model: CausalLM,
        config: TrainConfig,
        algorithm: Algorithm = _GRPO,
        *,
        total_steps: int,
        gemm: Gemm = "exact",
        reference: CausalLM | None = None,
        teacher: Teacher | None = None,
        reward_parts: Mapping[str, RewardPart] | None = None,
    ) -> None:
        """A trainer at step 0.

        Args:
            model: fp32, its weights loaded.
            config: optimizer and packing.
            algorithm: loss, advantages, penalties and corrections.
            total_steps: steps of the run, for the schedule.
            gemm: GEMM kernels of its passes.
            reference: the initial or an older policy, a model of its own; given exactly when ``algorithm.needs_reference``.
            teacher: given exactly when ``algorithm.loads_teacher``: otherwise there is none, or it is ``model``.
            reward_parts: of a weighted sum, by name.
        """
        _check_models(algorithm, reference, teacher)
        self.model, self._config, self._algorithm = model, config, algorithm
        self._total_steps, self._reward_parts = total_steps, dict(reward_parts or {})
        self._num_steps = 0
        self.is_inconsistent = False
        """See ``Trainer``."""
        self.critic = None if algorithm.critic is None else Critic(model, algorithm.critic, config)
        self._optimizer = Optimizer(
            model,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            keeps_masters=model.is_bf16,
        )
        self._others: dict[str, RefreshedModel] = {}
        """Models that nobody trains, by the prefix of their state."""
        if reference is not None:
            self._others[_REFERENCE] = RefreshedModel(
                reference, algorithm.kl.refresh, name="reference"
            )
        if algorithm.teacher is not None and teacher is not None:
            self._others[_TEACHER] = RefreshedModel(
                teacher.model, algorithm.teacher.refresh, name="teacher"
            )
        if algorithm.teacher is not None and algorithm.teacher.is_policy:
            teacher = Teacher(model, vocab_limit=model.head.vocab_limit)
        self._passes = Passes(
            model=model,
            reference=reference,
            teacher=teacher,
            critic=self.critic,
            config=config,
            compute=Compute(gemm=gemm),
        )
        self._meter = StepMeter()
        self._rollback = Rollback()
        """The state before the last step, while [acceptance] may undo it."""

    @property
    def num_saved_bytes(self) -> int:
        """See ``Trainer``."""
        own = sum(tensor.nbytes for tensor in self.state_dict().values())
        if self._algorithm.acceptance is None or self._rollback.is_held:
            return own
        return own + sum(tensor.nbytes for tensor in self._trained_state().values())

    def use_gemm(self, gemm: Gemm) -> None:
        """See ``Trainer``."""
        self._passes = replace(self._passes, compute=Compute(gemm=gemm))

    def use_corrections(self, corrections: CorrectionsConfig) -> None:
        """See ``Trainer``."""
        algorithm = self._algorithm.model_copy(update={"corrections": corrections})
        if problems := list(algorithm_problems(algorithm)):
            raise ConfigError("\n".join(problems))
        self._algorithm = algorithm

    def plan(
        self,
        samples: Sequence[Sample],
        *,
        exact_version: int | None = None,
        on_progress: Callable[[TrainProgress], None] | None = None,
    ) -> StepPlan:
        """See ``Trainer``."""
        self._meter = StepMeter(on_progress)
        return plan_step(
            samples,
            StepScore(self._passes, samples, self._meter),
            config=self._config,
            algorithm=self._algorithm,
            vocab_limit=self.model.head.vocab_limit,
            step_number=self._num_steps,
            exact_version=exact_version,
            reward_parts=self._reward_parts,
            can_undo=self._rollback.is_held,
        )

    def undo(self, plan: StepPlan) -> None:
        """See ``Trainer``."""
        if not plan.undoes:
            msg = f"the plan of step {plan.step_number + 1} trains, so there is nothing to undo; give it to step()"
            raise DataError(msg)
        self._check_number(plan)
        self.is_inconsistent = True
        self._load_trained(self._rollback.take())
        self._num_steps += 1
        self.is_inconsistent, self._meter = False, StepMeter()

    def step(
        self, plan: StepPlan, *, on_progress: Callable[[TrainProgress], None] | None = None
    ) -> TrainMetrics:
        """See ``Trainer``."""
        if plan.undoes:
            msg = f"the plan of step {plan.step_number + 1} undoes the step before, which [acceptance] refused, and trains nothing; give it to undo()"
            raise DataError(msg)
        updates = self._begin(plan, on_progress)
        columns, meter, learning_rate = StepColumns(plan), self._meter, self._learning_rate()
        gradient = PolicyGradient(self._passes, self._algorithm, plan, columns, meter)
        losses, grad_norms, critic_updates, audit = [], [], [], plan.old.audit
        for number, batches in enumerate(updates):
            self._optimizer.zero_grad()
            losses.append(gradient.accumulate(number, batches))
            if number == 0:
                audit = self._settle(plan, columns)
                if self._algorithm.acceptance is not None:
                    self._rollback.keep(self._trained_state())
            if plan.trains_policy:
                with meter.spans.span("optimizer"):
                    grad_norms.append(self._optimizer.update(learning_rate))
                # An update without a gradient has changed nothing.
                self.is_inconsistent |= grad_norms[-1] > 0
            if self.critic is not None:
                critic_updates.append(
                    self.critic.update(plan, batches.all, meter, compute=self._passes.compute)
                )
                self.is_inconsistent = True
        # A step that is counted but not reported has not been done.
        self.is_inconsistent = True
        self._num_steps += 1
        for other in self._others.values():
            other.follow(self.model, self._num_steps)
        metrics = summarise(
            plan,
            columns,
            updates,
            losses=losses,
            grad_norms=grad_norms,
            critic=summarise_critic(plan, critic_updates) if critic_updates else None,
            preferences=gradient.preferences,
            audit=audit,
            learning_rate=learning_rate,
            max_rows=self._config.micro_batch_tokens,
            seconds=meter.spans.take_totals(),
        )
        self.is_inconsistent, self._meter = False, StepMeter()
        return metrics

    def gradient(
        self, plan: StepPlan, *, on_progress: Callable[[TrainProgress], None] | None = None
    ) -> StepGradient:
        """See ``Trainer``."""
        first, *_ = self._begin(plan, on_progress)
        self._optimizer.zero_grad()
        columns = StepColumns(plan)
        gradient = PolicyGradient(self._passes, self._algorithm, plan, columns, self._meter)
        return StepGradient(
            loss=gradient.accumulate(0, first),
            grad_norm=self._optimizer.grad_norm(),
            tensors=self._optimizer.gradients(),
            num_updates=plan.num_updates,
        )

    def score(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """See ``Trainer``."""
        return score_samples(
            self.model,
            samples,
            compute=self._passes.compute,
            micro_batch_tokens=self._config.micro_batch_tokens,
            share_prompts=self._config.share_prompts,
        )

    def save(self, folder: Path) -> None:
        """See ``Trainer``: one file, which holds ``state_dict``."""
        state = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_tensors(state, folder / _FILE)

    def load(self, folder: Path) -> None:
        """See ``Trainer``."""
        self.load_state_dict(load_file(folder / _FILE))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, except the weights, as plain tensors.

        Moments are views: write or copy them before the next step.
        """
        return {
            "num_steps": torch.tensor(self._num_steps),
            "torch_rng_state": torch.get_rng_state(),
            **self._state_beside_weights(),
            **with_prefix(_BEFORE, self._rollback.state_dict()),
        }

    def _state_beside_weights(self) -> dict[str, Tensor]:
        """What training changes, except the policy's weights."""
        critic = {} if self.critic is None else self.critic.state_dict()
        return {
            **with_prefix(_OPTIMIZER, self._optimizer.state_dict()),
            **with_prefix(_CRITIC, critic),
            **{
                name: tensor
                for prefix, other in self._others.items()
                for name, tensor in with_prefix(prefix, other.state_dict()).items()
            },
        }

    def _trained_state(self) -> dict[str, Tensor]:
        """What training changes."""
        weights = with_prefix(_WEIGHTS, trained_weights(self.model))
        return weights | self._state_beside_weights()

    @torch.no_grad()
    def _load_trained(self, state: Mapping[str, Tensor]) -> None:
        """Restore a ``_trained_state``: the weights first, which masters must round to."""
        for name, weight in with_prefix(_WEIGHTS, trained_weights(self.model)).items():
            weight.copy_(state[name])
        self._load_beside_weights(state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a ``state_dict``; the model's weights are loaded separately.

        Raises:
            CheckpointError: the state belongs to another model, or is not a trainer's.
        """
        if missing := {"num_steps", "torch_rng_state"} - state.keys():
            msg = f"the trainer state lacks {sorted(missing)}: it is incomplete or not a trainer's; resume from another checkpoint"
            raise CheckpointError(msg)
        self._load_beside_weights(state)
        self._rollback.load_state_dict(without_prefix(_BEFORE, state))
        self._num_steps = int(state["num_steps"])
        torch.set_rng_state(state["torch_rng_state"])

    def _load_beside_weights(self, state: Mapping[str, Tensor]) -> None:
        critic = without_prefix(_CRITIC, state)
        if self.critic is not None:
            self.critic.load_state_dict(critic)
        elif critic:
            msg = f'the trainer state has a critic ({len(critic)} tensors), but this loss trains none: it is from a run with another loss; resume with advantage.kind = "critic"'
            raise CheckpointError(msg)
        for prefix in (_REFERENCE, _TEACHER):
            moved = without_prefix(prefix, state)
            if prefix in self._others:
                self._others[prefix].load_state_dict(moved)
            elif moved:
                msg = f"the trainer state has a {prefix.rstrip('.')} ({len(moved)} tensors), but this recipe has none: another recipe wrote it; resume with the recipe of that run"
                raise CheckpointError(msg)
        self._optimizer.load_state_dict(without_prefix(_OPTIMIZER, state))

    def _learning_rate(self) -> float:
        """The schedule counts steps that train the policy: a critic that warms up alone does not use it up."""
        alone = 0 if self._algorithm.critic is None else self._algorithm.critic.warmup_steps
        return learning_rate_at(
            max(self._num_steps - alone, 0),
            peak=self._config.learning_rate,
            schedule=self._config.schedule,
            warmup_steps=self._config.warmup_steps,
            total_steps=self._total_steps - alone,
        )

    # ------------------------------------------------------------ a step's parts

    def _begin(
        self, plan: StepPlan, on_progress: Callable[[TrainProgress], None] | None
    ) -> list[UpdateBatches]:
        """Refuse a plan of another step; the micro-batches of each update."""
        self._check_number(plan)
        meter = self._meter
        meter.on_progress = on_progress
        updates = self._passes.pack_updates(plan, meter)
        batches = [batch for update in updates for batch in update.all]
        meter.expect("update", batches)
        if self._algorithm.loss.compares_answers:
            meter.expect("preferences", batches)
        if self.critic is not None:
            meter.expect("critic", batches)
        return updates

    def _check_number(self, plan: StepPlan) -> None:
        if plan.step_number != self._num_steps:
            msg = f"a plan of step {plan.step_number + 1} was given to a trainer that has done {self._num_steps} steps: it was computed with other weights; plan the step again"
            raise DataError(msg)

    def _settle(self, plan: StepPlan, columns: StepColumns) -> OldLogProbAudit:
        """Audit log-probs taken from the engine against the first update's forward passes, before it is applied."""
        old = plan.old
        if not old.audit.num_audited:
            return old.audit
        found = compare(plan.tokens, columns.own_log_probs_S, old.is_exact_S)
        if found.num_different and old.is_taken_B.any() and not old.is_final:
            own_S = self._passes.score(plan.samples, self._meter, "old", old.is_taken_B)
            columns.replace_old(own_S)
            return compare(plan.tokens, columns.own_log_probs_S, old.is_exact_S)
        return replace(found, num_taken=old.audit.num_taken)


def _check_models(
    algorithm: Algorithm, reference: CausalLM | None, teacher: Teacher | None
) -> None:
    """Refuse an algorithm without the models that it needs, and models that nothing uses."""
    if (reference is not None) != algorithm.needs_reference:
        given = "no reference model" if reference is None else "a reference model"
        needs = "needs" if algorithm.needs_reference else "does not need"
        msg = f"this algorithm {needs} a reference, and {given} was given; it goes with a KL penalty or with dpo: give both or neither"
        raise ConfigError(msg)
    if (teacher is not None) != algorithm.loads_teacher:
        given = "no teacher" if teacher is None else "a teacher"
        table = "no [teacher] table" if algorithm.teacher is None else "a [teacher] table"
        if algorithm.teacher is not None and not algorithm.loads_teacher:
            table += " without a path and without refresh, whose teacher is the policy itself,"
        msg = f"an algorithm with {table} was given {given}: give a teacher exactly when the table has a path or refresh"
        raise ConfigError(msg)
