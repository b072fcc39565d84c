"""The measurement of a step: which records, up the ladder, summed up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import choose_records
from zerogap.config.monitoring import LedgerConfig
from zerogap.data import Reencoding
from zerogap.ledger.climb import StartedClimb, audited_tokens, start_climb
from zerogap.ledger.entry import LedgerEntry
from zerogap.ledger.scorer import Scorer
from zerogap.types import Sample, exclusion_reason

_CHOOSING = 0x1ED6E2
"""Keeps the choice apart from everything else that draws from the run's seed."""


class Ledger:
    """Measures the gap of a share of each step's samples, before they train."""

    def __init__(
        self,
        scorer: Scorer,
        config: LedgerConfig,
        *,
        reencode: Callable[[np.ndarray], Reencoding],
        seed: int,
        trainer_scores: bool = False,
    ) -> None:
        """A ledger of one run.

        Args:
            scorer: the trainer's forward pass.
            config: how much is audited.
            reencode: decodes ids and encodes the text again.
            seed: of the run; chooses what is audited, together with the step.
            trainer_scores: a step scores every sample with the weights that it starts from (one update a step does), so that
                ``finish`` can be given those log-probs instead of a pass of the ledger's own.
        """
        self._scorer, self._config = scorer, config
        self._reencode, self._seed = reencode, seed
        self._trainer_scores = trainer_scores

    def choose(self, samples: Sequence[Sample], *, step: int) -> list[Sample]:
        """The records that are audited: whole ones, valid, with sampled tokens; the same at every call."""
        num_tokens = [
            int(audited_tokens(sample).sum()) if exclusion_reason(sample) is None else 0
            for sample in samples
        ]
        chosen = choose_records(
            np.array(num_tokens, np.int64),
            [sample.group_id for sample in samples],
            share=self._config.share,
            min_records=self._config.min_records,
            seed=(self._seed, step, _CHOOSING),
        )
        return [samples[i] for i in chosen]

    def start(self, samples: Sequence[Sample], *, step: int, version: int) -> "StartedAudit":
        """Begin to audit a step. Call it before ``Trainer.step``: afterwards the weights are others.

        Args:
            samples: of the step, all of them.
            step: its number.
            version: of the trainer's weights now.

        Raises:
            NumericsError: a rung of an audited token is not finite; names the record.
        """
        chosen = self.choose(samples, step=step)
        climb = start_climb(chosen, self._scorer, version=version, reencode=self._reencode) if chosen else None  # fmt: skip
        if climb is not None and (climb.passes.has_routes or not self._trainer_scores):
            climb.score_present()
        return StartedAudit(step=step, version=version, climb=climb)

    def measure(self, samples: Sequence[Sample], *, step: int, version: int) -> LedgerEntry:
        """Audit a step at once, with every forward pass of its own. Arguments and errors as ``start``."""
        started = self.start(samples, step=step, version=version)
        if started.climb is None:
            return started.finish({})
        present = started.climb.score_present()
        return started.finish(
            dict(zip((s.rollout_id for s in started.climb.samples), present, strict=True))
        )


@dataclass(frozen=True, kw_only=True)
class StartedAudit:
    """An audit that lacks the log-probs of the weights that are about to train."""

    step: int
    version: int
    climb: StartedClimb | None
    """None if nothing is audited."""

    def finish(self, own_log_probs: Mapping[str, np.ndarray]) -> LedgerEntry:
        """The entry.

        Args:
            own_log_probs: [T] by rollout id: what the trainer computed before any weight moved (never the engine's, whatever
                the loss takes for the old ones). Read only where the ledger made no pass of its own.
        """
        if self.climb is None:
            return LedgerEntry.of([], step=self.step, version=self.version)
        present = [own_log_probs[sample.rollout_id] for sample in self.climb.samples]
        return LedgerEntry.of(self.climb.finish(present), step=self.step, version=self.version)
