"""Everything that a step decides and computes before its first update.

The order matters: who takes part; what must be known before the weights move (log-probs at the start of the step, the
reference's, the teacher's, a critic's values); advantages, which rest on these; corrections, over the full batch; and the
plan, whose denominators are those of the full batch, whatever was rejected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import correct_mismatch, loss_denominators
from zerogap.config.corrections import CorrectionsConfig
from zerogap.config.loss import DPOLossConfig, LossConfig
from zerogap.config.train import TrainConfig
from zerogap.models import CausalLM
from zerogap.obs import Spans
from zerogap.train.advantages import decide_advantages
from zerogap.train.critic import Critic
from zerogap.train.forward import scores
from zerogap.train.metrics import TrainProgress
from zerogap.train.objective import samples_with_signal
from zerogap.train.old_log_probs import OldLogProbs
from zerogap.train.packing import MicroBatch
from zerogap.train.participants import take_part
from zerogap.train.plan import UpdatePlan, pack_members, plan_update
from zerogap.train.preferences import preference_pairs
from zerogap.train.requirements import (
    denominator_of,
    has_policy_ratio,
    is_top_k,
    needs_old_first,
)
from zerogap.train.step_state import StepState
from zerogap.train.teacher import Teacher
from zerogap.types import Sample


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Knows the models that a step asks before it changes one."""

    model: CausalLM
    """The policy."""
    reference: CausalLM | None
    teacher: Teacher | None
    critic: Critic | None
    config: TrainConfig
    loss: LossConfig
    corrections: CorrectionsConfig
    vocab_limit: int

    def begin(
        self,
        samples: Sequence[Sample],
        *,
        step_number: int,
        exact_version: int | None,
        on_progress: Callable[[TrainProgress], None] | None,
    ) -> tuple[StepState, OldLogProbs]:
        """A step that is ready for its first update, and where its old log-probs come from."""
        who = take_part(
            samples, max_updates=self.config.updates_per_step, vocab_limit=self.vocab_limit
        )
        step = StepState(samples, who, spans=Spans(), on_progress=on_progress)
        old = self._old_log_probs(step, exact_version, seed=step_number)
        old.score()
        self._ask_the_others(step)
        step.advantages = decide_advantages(step, self.loss)
        self._correct(step)
        is_critic_alone = self.critic is not None and self.critic.is_alone(step_number)
        step.updates = self._plan(step, learns=not is_critic_alone)
        self._announce(step)
        return step, old

    def _old_log_probs(
        self, step: StepState, exact_version: int | None, *, seed: int
    ) -> OldLogProbs:
        """Which of them are computed before the first update."""
        is_needed_first = needs_old_first(self.loss, self.corrections)
        if self.config.old_log_probs == "rollout":
            step.old_log_probs_S[step.trains_S] = step.rollout_log_probs_S[step.trains_S]
            is_wanted_B = np.zeros(len(step.samples), bool)
        elif is_needed_first:
            is_wanted_B = step.who.is_kept_B
        else:
            is_wanted_B = (step.who.update_B > 0) & has_policy_ratio(self.loss)
        return OldLogProbs(
            self.model,
            step,
            self._pack(step, is_wanted_B),
            exact_version=exact_version,
            audit_share=self.config.audit_share,
            seed=seed,
            vocab_limit=self.vocab_limit,
            is_needed_first=is_needed_first,
        )

    def _ask_the_others(self, step: StepState) -> None:
        """Reference, teacher and critic about all tokens that train."""
        asks_teacher = self.teacher is not None and not is_top_k(self.loss)
        if self.reference is None and self.critic is None and not asks_teacher:
            return
        batches = self._pack(step, step.who.is_kept_B)
        # About as many rows as the updates will have; exactly so once they are planned.
        step.expect("update", batches)
        if self.reference is not None:
            step.expect("reference", batches)
            self._score_reference(self.reference, step, batches)
        if self.teacher is not None and asks_teacher:
            step.expect("teacher", batches)
            self._score_teacher(self.teacher, step, batches)
        if self.critic is not None:
            step.expect("values", batches)
            step.expect("critic", batches)
            self.critic.score(step, batches)

    def _score_reference(
        self, reference: CausalLM, step: StepState, batches: Sequence[MicroBatch]
    ) -> None:
        with step.spans.span("reference"):
            for batch, log_probs_R in scores(
                reference, batches, step.samples, vocab_limit=self.vocab_limit
            ):
                step.ref_log_probs_S[step.index.slots(batch)] = log_probs_R
                step.advance("reference", batch)

    def _score_teacher(
        self, teacher: Teacher, step: StepState, batches: Sequence[MicroBatch]
    ) -> None:
        with step.spans.span("teacher"):
            for batch in batches:
                log_probs_R = teacher.log_probs(batch, step.samples)
                step.teacher_log_probs_S[step.index.slots(batch)] = log_probs_R.numpy()
                step.advance("teacher", batch)

    def _correct(self, step: StepState) -> None:
        """Weights and rejections, where they are switched on."""
        if not self.corrections.needs_old_log_probs:
            return
        step.corrections = correct_mismatch(
            step.old_log_probs_S,
            step.rollout_log_probs_S,
            step.trains_S,
            step.record_S,
            weight=self.corrections.weight,
            mask=self.corrections.mask,
            veto=self.corrections.veto,
            name_token=step.index.name,
        )

    def _plan(self, step: StepState, *, learns: bool) -> list[UpdatePlan]:
        """All updates: their micro-batches and denominators."""
        has_signal_B = samples_with_signal(step, self.loss) & learns
        plans = []
        for number in range(step.who.num_updates):
            is_member_B = step.who.update_B == number
            denominator_B = self._denominators(step, is_member_B)
            with step.spans.span("pack"):
                plans.append(
                    plan_update(
                        step.samples,
                        is_member_B,
                        has_signal_B,
                        config=self.config,
                        denominator_B=denominator_B,
                    )
                )
        return plans

    def _denominators(self, step: StepState, is_member_B: np.ndarray) -> np.ndarray:
        if isinstance(self.loss, DPOLossConfig):
            num_pairs = len(preference_pairs(step.samples, is_member_B))
            return np.where(is_member_B, float(num_pairs), np.inf)
        kind, constant = denominator_of(self.loss)
        ids_of = {"group": step.group_ids, "rollout": [s.rollout_id for s in step.samples]}
        return loss_denominators(
            step.num_loss_tokens_B * is_member_B,
            kind=kind,
            constant=constant,
            shared_ids=ids_of.get(kind),
        )

    def _announce(self, step: StepState) -> None:
        batches = [batch for update in step.updates for batch in update.micro_batches]
        step.expect("update", batches)
        if isinstance(self.loss, DPOLossConfig):
            step.expect("preferences", batches)
        if self.critic is not None:
            step.expect("critic", batches)

    def _pack(self, step: StepState, is_member_B: np.ndarray) -> list[MicroBatch]:
        with step.spans.span("pack"):
            return pack_members(step.samples, is_member_B, self.config)
