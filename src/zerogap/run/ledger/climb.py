"""Up the ladder: the log-prob of each audited token on every rung, with as few forward passes as that takes.

A token is scored with the weights that drew it, so a record that several versions wrote is scored by each of them. In
a synchronous run of a dense model those weights are the present ones and there are no routes: one pass gives a2, a3 and
a4, and a5 too where encoding the text again gives the same ids.

What several versions wrote was drawn beside keys of older weights, and is scored beside keys of one: that difference
shows up under ``numbers``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.algorithms import Attribution, Rungs, attribute
from zerogap.data import Reencoding
from zerogap.run.ledger.passes import Passes
from zerogap.run.ledger.reencoded import as_sample, known_again
from zerogap.run.ledger.scorer import Scorer
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
    passes = Passes(samples, scorer)
    a4 = passes.of_version(version)
    a2, is_held = passes.by_own_version("replayed")
    a3, _ = passes.by_own_version("free")
    again = [reencode(sample.token_ids) for sample in samples]
    a5 = _on_reencoded(samples, again, a4, scorer, version)
    return [
        _record(
            sample,
            rungs=(a2[i], a3[i], a4[i], a5[i]),
            is_held=is_held[i],
            is_differing=again[i].partner_T < 0,
        )
        for i, sample in enumerate(samples)
    ]


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


def _on_reencoded(
    samples: Sequence[Sample],
    again: Sequence[Reencoding],
    a4: Sequence[np.ndarray],
    scorer: Scorer,
    version: int,
) -> list[np.ndarray]:
    """a5; no forward pass for records whose ids come back the same."""
    at = [
        i for i, one in enumerate(again) if not one.is_same and known_again(samples[i], one).any()
    ]
    a5 = [column.copy() for column in a4]
    if not at:
        return a5
    changed = [as_sample(samples[i], again[i]) for i in at]
    scored = Passes(changed, scorer).of_version(version)
    for i, column in zip(at, scored, strict=True):
        is_known = known_again(samples[i], again[i])
        a5[i][is_known] = column[again[i].partner_T[is_known]]
    return a5
