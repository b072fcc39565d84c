"""The measurement of a step: which records, up the ladder, summed up."""

from collections.abc import Callable, Sequence

import numpy as np

from zerogap.algorithms import choose_records
from zerogap.config.ledger import LedgerConfig
from zerogap.data import Reencoding
from zerogap.run.ledger.climb import audited_tokens, climb
from zerogap.run.ledger.entry import LedgerEntry
from zerogap.run.ledger.scorer import Scorer
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
    ) -> None:
        """A ledger of one run.

        Args:
            scorer: the trainer's forward pass.
            config: how much is audited.
            reencode: decodes ids and encodes the text again.
            seed: of the run; chooses what is audited, together with the step.
        """
        self._scorer, self._config = scorer, config
        self._reencode, self._seed = reencode, seed

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

    def measure(self, samples: Sequence[Sample], *, step: int, version: int) -> LedgerEntry:
        """Audit a step. Call it before ``Trainer.step``: afterwards the weights are others.

        Args:
            samples: of the step, all of them.
            step: its number.
            version: of the trainer's weights now.

        Raises:
            NumericsError: a rung of an audited token is not finite; names the record.
        """
        chosen = self.choose(samples, step=step)
        records = (
            climb(chosen, self._scorer, version=version, reencode=self._reencode) if chosen else []
        )
        return LedgerEntry.of(records, step=step, version=version)
