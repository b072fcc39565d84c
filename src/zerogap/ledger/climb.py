"""Up the ladder: the log-prob of each audited token on every rung, with as few forward passes as that takes.

A token is scored with the weights that drew it, so a record that several versions wrote is scored by each of them. In
a synchronous run of a dense model those weights are the present ones and there are no routes: one pass gives a2, a3 and
a4, and a5 too where encoding the text again gives the same ids. A trainer that is about to make that pass anyway, before
any weight moves, need not be asked twice: ``start_climb`` does the rest, and ``finish`` takes the trainer's own log-probs.

What several versions wrote was drawn beside keys of older weights, and is scored beside keys of one: that difference
shows up under ``numbers``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import Attribution, Rungs, attribute
from zerogap.data import Reencoding
from zerogap.ledger.passes import Passes
from zerogap.ledger.reencoded import as_sample, known_again
from zerogap.ledger.scorer import Scorer
from zerogap.types import Sample


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditedRecord:
    """A record with what the ledger found; columns are [T]."""

    sample: Sample
    is_audited: np.ndarray
    """bool: sampled tokens that train, before any correction."""
    attribution: Attribution
    """Differences of the audited tokens whose weights are still held."""
    is_differing: np.ndarray
    """bool: audited tokens that decoding and encoding again puts other ids in the place of."""

    @property
    def num_audited(self) -> int:
        """Audited tokens."""
        return int(self.is_audited.sum())

    @property
    def num_attributed(self) -> int:
        """Audited tokens with a number on every rung."""
        return int(self.attribution.is_attributed.sum())


def audited_tokens(sample: Sample) -> np.ndarray:
    """What the ledger is about, bool [T]: sampled tokens that train."""
    return sample.loss_mask & (sample.weight_version >= 0)


def climb(
    samples: Sequence[Sample],
    scorer: Scorer,
    *,
    version: int,
    reencode: Callable[[np.ndarray], Reencoding],
) -> list[AuditedRecord]:
    """Score samples on every rung.

    Where encoding again gives another id, a token has no a5 of its own: it keeps a4, so that its ``tokens`` difference
    is 0, and is counted in ``is_differing``. The tokens behind it are scored on the ids that were encoded again.

    Args:
        samples: with sampled tokens.
        scorer: has the weights of ``version``, and perhaps of others.
        version: of the weights that will train on the samples.
        reencode: decodes ids and encodes the text again.

    Raises:
        WeightSyncError: the scorer has no weights of ``version``.
        NumericsError: a rung is not finite; names the record.
    """
    started = start_climb(samples, scorer, version=version, reencode=reencode)
    return started.finish(started.score_present())


def start_climb(
    samples: Sequence[Sample],
    scorer: Scorer,
    *,
    version: int,
    reencode: Callable[[np.ndarray], Reencoding],
) -> "StartedClimb":
    """Every forward pass but that of ``version`` over the samples as they are. Arguments and errors as ``climb``."""
    passes = Passes(samples, scorer)
    passes.prefetch_others(version)
    again = [reencode(sample.token_ids) for sample in samples]
    return StartedClimb(
        samples=samples,
        version=version,
        passes=passes,
        again=again,
        reread=_read_again(samples, again, scorer, version),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class StartedClimb:
    """Rungs that are scored; the present weights on the recorded ids are missing."""

    samples: Sequence[Sample]
    version: int
    """Of the present weights."""
    passes: Passes
    again: Sequence[Reencoding]
    """Of each sample."""
    reread: Mapping[int, np.ndarray]
    """Place of a sample -> log-probs [U] on its ids of the text encoded again; samples whose ids come back have none."""

    def score_present(self) -> list[np.ndarray]:
        """Make the missing pass: log-probs of the present weights, [T] of each sample."""
        present = self.passes.of_version(self.version)
        for routes in ("replayed", "free"):
            self.passes.by_own_version(routes)
        return present

    def finish(self, present: Sequence[np.ndarray]) -> list[AuditedRecord]:
        """The records, with the log-probs of the present weights, [T] of each sample.

        Raises:
            NumericsError: a rung is not finite; names the record.
        """
        self.passes.provide(self.version, present)
        a4 = self.passes.of_version(self.version)
        a2, is_held = self.passes.by_own_version("replayed")
        a3, _ = self.passes.by_own_version("free")
        return [
            _record(
                sample,
                rungs=(a2[i], a3[i], a4[i], self._a5(i, a4[i])),
                is_held=is_held[i],
                is_differing=self.again[i].partner_T < 0,
            )
            for i, sample in enumerate(self.samples)
        ]

    def _a5(self, i: int, a4: np.ndarray) -> np.ndarray:
        if i not in self.reread:
            return a4
        is_known = known_again(self.samples[i], self.again[i])
        a5 = a4.copy()
        a5[is_known] = self.reread[i][self.again[i].partner_T[is_known]]
        return a5


def _record(
    sample: Sample,
    *,
    rungs: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    is_held: np.ndarray,
    is_differing: np.ndarray,
) -> AuditedRecord:
    is_audited = audited_tokens(sample)
    a1 = sample.rollout_log_probs.astype(np.float64)
    a2, a3, a4, a5 = rungs
    ladder = Rungs(
        a0=a1 - sample.kept_log_mass,
        a1=a1,
        a2=a2,
        a3=a3,
        a4=a4,
        a5=a5,
        is_attributed=is_audited & is_held,
    )
    return AuditedRecord(
        sample=sample,
        is_audited=is_audited,
        attribution=attribute(ladder, record=f"rollout {sample.rollout_id}"),
        is_differing=is_audited & is_differing,
    )


def _read_again(
    samples: Sequence[Sample], again: Sequence[Reencoding], scorer: Scorer, version: int
) -> dict[int, np.ndarray]:
    """Scores on the ids that were encoded again; no forward pass for records whose ids come back the same."""
    at = [
        i for i, one in enumerate(again) if not one.is_same and known_again(samples[i], one).any()
    ]
    if not at:
        return {}
    changed = [as_sample(samples[i], again[i]) for i in at]
    return dict(zip(at, Passes(changed, scorer).of_version(version), strict=True))
