"""Log-probs at the start of the step: where they come from, and what becomes of a claim that somebody has them already.

The first update's are those of its own forward pass: no weight has changed, and the kernels do not depend on the batch.
Later updates need theirs before the first is applied; corrections need all of them before the first forward pass.

Where engine and trainer agree to the bit, a sample that the present weights drew has them already: the engine reported them.
They are taken over without a forward pass. A share of the micro-batches is scored all the same, and the first update's
forward passes are compared too. One token that differs, and everything is scored: a claim that failed once is worth nothing.
(If it is the first update's forward that shows it and corrections have been decided by then, it is counted.)
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zerogap.models import CausalLM
from zerogap.train.forward import scores
from zerogap.train.metrics import OldLogProbAudit
from zerogap.train.packing import MicroBatch
from zerogap.train.step_state import StepState
from zerogap.types import Sample


class OldLogProbs:
    """Fills ``step.old_log_probs_S``, but for what the first update's own forward passes give.

    ``score`` is called before the first update, ``settle`` once the forward passes of the first update are done and before
    its gradient is applied.
    """

    audit: OldLogProbAudit
    """What was found so far."""

    def __init__(
        self,
        model: CausalLM,
        step: StepState,
        batches: Sequence[MicroBatch],
        *,
        exact_version: int | None,
        audit_share: float,
        seed: int,
        vocab_limit: int,
        is_needed_first: bool = False,
    ) -> None:
        """Decide which micro-batches need a forward pass.

        Args:
            model: the policy as it is at the start of the step.
            step: writes its columns.
            batches: of all tokens whose old log-prob must be known before the first update is applied.
            exact_version: see ``Trainer.step``.
            audit_share: in (0, 1]; of the micro-batches that could be taken over, at least one is scored.
            seed: picks them.
            vocab_limit: ids at or past it do not exist.
            is_needed_first: all of them must be known after ``score``.
        """
        self._model, self._step, self._vocab_limit = model, step, vocab_limit
        self._is_needed_first = is_needed_first
        is_known_B = np.array([_is_drawn_by(s, exact_version) for s in step.samples])
        self._is_known_S = step.index.spread(is_known_B)
        """Tokens whose rollout log-probs should be the trainer's to the bit."""
        could_take = [b for b, batch in enumerate(batches) if is_known_B[batch.sample_R].all()]
        num_taken = len(could_take) - math.ceil(audit_share * len(could_take))
        taken = set(np.random.default_rng(seed).permutation(could_take)[:num_taken].tolist())
        self._scored = [batch for b, batch in enumerate(batches) if b not in taken]
        self._taken = [batches[b] for b in sorted(taken)]
        self.audit = OldLogProbAudit()
        step.expect("old", self._scored)

    def score(self) -> None:
        """Forward passes over what cannot be taken over, and over what is audited."""
        self._score(self._scored)
        self._compare()
        if self._is_needed_first:
            self._take_or_score()

    def settle(self) -> None:
        """The first update's forward passes are done: look at what they say."""
        if not self._taken:
            return
        self._compare()
        if not self._is_needed_first:
            self._take_or_score()

    def _take_or_score(self) -> None:
        if self.audit.num_different:
            self._step.expect("old", self._scored + self._taken)
            self._score(self._taken)
            self._compare()
        else:
            self._take()

    def _score(self, batches: Sequence[MicroBatch]) -> None:
        step = self._step
        if not batches:
            return
        with step.spans.span("old"):
            for batch, log_probs_R in scores(
                self._model, batches, step.samples, vocab_limit=self._vocab_limit
            ):
                slots_R = step.index.slots(batch)
                step.own_log_probs_S[slots_R] = step.old_log_probs_S[slots_R] = log_probs_R
                step.advance("old", batch)

    def _take(self) -> None:
        step, num_taken = self._step, 0
        for batch in self._taken:
            slots_R = step.index.slots(batch)
            step.old_log_probs_S[slots_R] = step.rollout_log_probs_S[slots_R]
            num_taken += len(slots_R)
        self.audit = replace(self.audit, num_taken=num_taken)

    def _compare(self) -> None:
        step = self._step
        ours_S, reported_S = step.own_log_probs_S, step.rollout_log_probs_S
        is_audited_S = self._is_known_S & ~np.isnan(ours_S)
        different = np.flatnonzero(is_audited_S & (ours_S != reported_S))
        first = ""
        if len(different):
            at = int(different[0])
            first = f"{step.index.name(at)}: the engine reported {reported_S[at]!s}, the trainer finds {ours_S[at]!s}"
        self.audit = OldLogProbAudit(
            num_taken=self.audit.num_taken,
            num_audited=int(is_audited_S.sum()),
            num_different=len(different),
            first_difference=first,
        )


def _is_drawn_by(sample: Sample, version: int | None) -> bool:
    """Whether all sampled tokens are of this version: behind older ones, a token's keys may be another policy's."""
    versions = sample.weight_version[sample.weight_version >= 0]
    return version is not None and bool((versions == version).all())
