"""The ledger: for each step, it chooses samples and attributes their gap."""

from collections.abc import Callable, Sequence
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
        is_exact: bool,
        trainer_scores: bool = False,
    ) -> None:
        """A ledger of one run.

        Args:
            scorer: the trainer's forward pass.
            config: how much is audited.
            reencode: decodes ids and encodes the text again.
            seed: of the run; seed and step decide what is audited.
            is_exact: whether numerics promise that a row's bits do not depend on its batch. One sample a step is then
                scored a second time, alone, and must be equal to the bit.
            trainer_scores: a step scores every sample with its initial weights (true for one update a step), so
                ``finish`` gets these log-probs and the ledger saves a pass.
        """
        self._scorer, self._config = scorer, config
        self._reencode, self._seed = reencode, seed
        self._is_exact, self._trainer_scores = is_exact, trainer_scores

    def choose(self, samples: Sequence[Sample], *, step: int) -> list[int]:
        """Indices of the samples to audit: valid, with sampled tokens; the same at every call."""
        num_tokens = [
            int(audited_tokens(sample).sum()) if exclusion_reason(sample) is None else 0
            for sample in samples
        ]
        return choose_samples(
            np.array(num_tokens, np.int64),
            [sample.group_id for sample in samples],
            share=self._config.share,
            min_samples=self._config.min_samples,
            seed=(self._seed, step, _CHOOSING),
        )

    def start(self, samples: Sequence[Sample], *, step: int, version: int) -> "StartedAudit":
        """Begin to audit a step. Call it before ``Trainer.step``, which changes the weights.

        Args:
            samples: all samples of the step; several may belong to one rollout.
            step: its number.
            version: of the trainer's weights now.

        Raises:
            NumericsError: a log-prob of an audited token is not finite; the message names the sample.
        """
        chosen = self.choose(samples, step=step)
        if not chosen:
            return StartedAudit(step=step, version=version, chosen=(), attribution=None)
        attribution = start_attribution(
            [samples[i] for i in chosen],
            self._scorer,
            version=version,
            is_exact=self._is_exact,
            reencode=self._reencode,
        )
        if attribution.passes.has_routes or not self._trainer_scores:
            attribution.score_present()
        return StartedAudit(
            step=step, version=version, chosen=tuple(chosen), attribution=attribution
        )

    def measure(self, samples: Sequence[Sample], *, step: int, version: int) -> LedgerEntry:
        """Audit a step at once, without the trainer's log-probs; arguments and errors as ``start`` and ``finish``."""
        started = self.start(samples, step=step, version=version)
        return started.finish_with(
            [] if started.attribution is None else started.attribution.score_present()
        )


@dataclass(frozen=True, kw_only=True)
class StartedAudit:
    """An audit that still lacks the log-probs under the weights that are about to train."""

    step: int
    version: int
    chosen: tuple[int, ...]
    """Places of the audited samples among those of the step. Rollout ids may repeat, places do not."""
    attribution: StartedAttribution | None
    """None if nothing is audited."""

    def finish(self, own_log_probs: Sequence[np.ndarray]) -> LedgerEntry:
        """The entry.

        Args:
            own_log_probs: the trainer's log-probs, [T] for each sample of the step in the order of ``start``, computed before any weight
                changed; never the engine's, even if the loss uses those as old log-probs. Ignored if the ledger made its own pass.

        Raises:
            NumericsError: a log-prob of an audited token is not finite; the message names the sample.
            RecheckError: a second path gave another log-prob than the trainer's, though numerics are exact.
        """
        return self.finish_with([own_log_probs[i] for i in self.chosen])

    def finish_with(self, present: Sequence[np.ndarray]) -> LedgerEntry:
        """The same from the log-probs of the chosen samples only."""
        audited = [] if self.attribution is None else self.attribution.finish(present)
        return LedgerEntry.of(audited, step=self.step, version=self.version)
