"""Log-probs at the start of the step, for the updates after the first.

Where engine and trainer agree to the bit, a sample that the present weights drew has them already: the engine reported them.
They are taken over without a forward pass. A share of the micro-batches is scored all the same, and the first update's
forward passes are compared too. One token that differs, and everything is scored: a claim that failed once is worth nothing.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from zerogap.models import CausalLM
from zerogap.train.forward import scores
from zerogap.train.metrics import OldLogProbAudit
from zerogap.train.packing import MicroBatch
from zerogap.train.step_state import StepState
from zerogap.types import Sample


class OldLogProbs:
    """Fills ``step.old_log_probs_S`` for all updates but the first, whose own forward passes give it.

    ``score`` is called before the first update, ``settle`` once the forward passes of the first update are done and before
    its gradient is applied.
    """

    audit: OldLogProbAudit
    """What was found so far."""

    def __init__(
        self,
        model: CausalLM,
        step: StepState,
        *,
        exact_version: int | None,
        audit_share: float,
        seed: int,
        vocab_limit: int,
    ) -> None:
        """Decide which micro-batches need a forward pass.

        Args:
            model: the policy as it is at the start of the step.
            step: reads its plan, writes its columns.
            exact_version: see ``Trainer.step``.
            audit_share: in (0, 1]; of the micro-batches that could be taken over, at least one is scored.
            seed: picks them.
            vocab_limit: ids at or past it do not exist.
        """
        self._model, self._step, self._vocab_limit = model, step, vocab_limit
        self._is_known_B = np.array([_is_drawn_by(s, exact_version) for s in step.samples])
        """Samples whose rollout log-probs should be the trainer's to the bit."""
        batches = [batch for update in step.plan.updates[1:] for batch in update.micro_batches]
        self._scored, self._taken = self._share_out(batches, audit_share, seed)
        self.audit = OldLogProbAudit()
        step.expect(self._scored)

    def score(self) -> None:
        """Forward passes over what cannot be taken over, and over what is audited."""
        with self._step.spans.span("old"):
            self._score(self._scored)

    def settle(self) -> None:
        """Take over what the engine reported, unless a difference was found: then score it."""
        if not self._taken:
            return
        self._compare(self._step.plan.updates[0].micro_batches)
        if self.audit.num_different:
            self._step.expect(self._taken)
            with self._step.spans.span("old"):
                self._score(self._taken)
        else:
            self._take()

    def _share_out(
        self, batches: Sequence[MicroBatch], audit_share: float, seed: int
    ) -> tuple[list[MicroBatch], list[MicroBatch]]:
        could_take = [
            b for b, batch in enumerate(batches) if self._is_known_B[batch.sample_R].all()
        ]
        num_taken = len(could_take) - math.ceil(audit_share * len(could_take))
        taken = set(np.random.default_rng(seed).permutation(could_take)[:num_taken].tolist())
        scored = [batch for b, batch in enumerate(batches) if b not in taken]
        return scored, [batches[b] for b in sorted(taken)]

    def _score(self, batches: Sequence[MicroBatch]) -> None:
        step = self._step
        found = scores(self._model, batches, step.samples, vocab_limit=self._vocab_limit)
        for batch, log_probs_R in found:
            step.old_log_probs_S[step.index.slots(batch)] = log_probs_R
            step.advance("old", batch)
        self._compare(batches)

    def _take(self) -> None:
        step = self._step
        for batch in self._taken:
            slots_R = step.index.slots(batch)
            step.old_log_probs_S[slots_R] = step.rollout_log_probs_S[slots_R]
            step.is_taken_S[slots_R] = True
            self.audit += OldLogProbAudit(num_taken=len(slots_R))

    def _compare(self, batches: Iterable[MicroBatch]) -> None:
        step = self._step
        for batch in batches:
            slots_R, is_known_R = step.index.slots(batch), self._is_known_B[batch.sample_R]
            ours_R, reported_R = step.old_log_probs_S[slots_R], step.rollout_log_probs_S[slots_R]
            different = np.flatnonzero(is_known_R & (ours_R != reported_R))
            first = ""
            if len(different):
                at = int(different[0])
                first = f"{step.index.name(batch, at)}: the engine reported {reported_R[at]!s}, the trainer finds {ours_R[at]!s}"
            self.audit += OldLogProbAudit(
                num_audited=int(is_known_R.sum()),
                num_different=len(different),
                first_difference=first,
            )


def _is_drawn_by(sample: Sample, version: int | None) -> bool:
    """Whether all sampled tokens are of this version: behind older ones, a token's keys may be another policy's."""
    versions = sample.weight_version[sample.weight_version >= 0]
    return version is not None and bool((versions == version).all())
