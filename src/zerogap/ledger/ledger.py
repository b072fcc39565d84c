"""The ledger: for each step, it chooses samples and attributes their gap."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import choose_samples
from zerogap.config.monitoring import LedgerConfig
from zerogap.data import Reencoding
from zerogap.ledger.attribution import StartedAttribution, audited_tokens, start_attribution
from zerogap.ledger.entry import LedgerEntry
from zerogap.ledger.scorer import Scorer
from zerogap.types import Sample, exclusion_reason

_CHOOSING = 0x1ED6E2
"""Separates this random stream from all others of the run's seed."""


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
            seed: of the run; seed and step decide what is audited.
            trainer_scores: a step scores every sample with its initial weights (true for one update a step), so
                ``finish`` gets these log-probs and the ledger saves a pass.
        """
        self._scorer, self._config = scorer, config
        self._reencode, self._seed = reencode, seed
        self._trainer_scores = trainer_scores

    def choose(self, samples: Sequence[Sample], *, step: int) -> list[Sample]:
        """The samples to audit: valid, with sampled tokens; the same at every call."""
        num_tokens = [
            int(audited_tokens(sample).sum()) if exclusion_reason(sample) is None else 0
            for sample in samples
        ]
        chosen = choose_samples(
            np.array(num_tokens, np.int64),
            [sample.group_id for sample in samples],
            share=self._config.share,
            min_samples=self._config.min_samples,
            seed=(self._seed, step, _CHOOSING),
        )
        return [samples[i] for i in chosen]

    def start(self, samples: Sequence[Sample], *, step: int, version: int) -> "StartedAudit":
        """Begin to audit a step. Call it before ``Trainer.step``, which changes the weights.

        Args:
            samples: all samples of the step.
            step: its number.
            version: of the trainer's weights now.

        Raises:
            NumericsError: a log-prob of an audited token is not finite; the message names the sample.
        """
        chosen = self.choose(samples, step=step)
        attribution = start_attribution(chosen, self._scorer, version=version, reencode=self._reencode) if chosen else None  # fmt: skip
        if attribution is not None and (attribution.passes.has_routes or not self._trainer_scores):
            attribution.score_present()
        return StartedAudit(step=step, version=version, attribution=attribution)

    def measure(self, samples: Sequence[Sample], *, step: int, version: int) -> LedgerEntry:
        """Audit a step at once, without the trainer's log-probs; arguments and errors as ``start``."""
        started = self.start(samples, step=step, version=version)
        if started.attribution is None:
            return started.finish({})
        present = started.attribution.score_present()
        return started.finish(
            dict(zip((s.rollout_id for s in started.attribution.samples), present, strict=True))
        )


@dataclass(frozen=True, kw_only=True)
class StartedAudit:
    """An audit that still lacks the log-probs under the weights that are about to train."""

    step: int
    version: int
    attribution: StartedAttribution | None
    """None if nothing is audited."""

    def finish(self, own_log_probs: Mapping[str, np.ndarray]) -> LedgerEntry:
        """The entry.

        Args:
            own_log_probs: the trainer's log-probs [T] by rollout id, computed before any weight changed; never the engine's,
                even if the loss uses those as old log-probs. Ignored if the ledger made its own pass.
        """
        if self.attribution is None:
            return LedgerEntry.of([], step=self.step, version=self.version)
        present = [own_log_probs[sample.rollout_id] for sample in self.attribution.samples]
        return LedgerEntry.of(
            self.attribution.finish(present), step=self.step, version=self.version
        )
