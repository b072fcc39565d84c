"""The log-prob of each audited token at every stage of the ledger, with as few forward passes as possible.

A token is scored with the weights that sampled it. If several versions sampled a sample, each of them scores it. In
a synchronous run of a dense model those are the current weights and there are no routes: one pass gives a2, a3 and
a4, and also a5 if re-encoding the text gives the same ids. A trainer makes that pass anyway before any weight changes:
``start_attribution`` makes all other passes, and ``finish`` takes the trainer's log-probs. One token of one sample is scored a second
time, alone, and compared (``recheck``).

A sample of several versions was sampled with keys of older weights and is scored with keys of one version. The
difference shows up under ``numbers``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zerogap.algorithms import Attribution, Stages, attribute
from zerogap.data import Reencoding
from zerogap.ledger.passes import Passes
from zerogap.ledger.recheck import Recheck, Rescored, rescore_one
from zerogap.ledger.reencoded import as_sample, known_again
from zerogap.ledger.scorer import Scorer
from zerogap.types import Sample


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditedSample:
    """A sample and its attribution; columns are [T]."""

    sample: Sample
    is_audited: np.ndarray
    """bool: sampled tokens that train, before any correction."""
    attribution: Attribution
    """Differences of the audited tokens whose weights are still available."""
    is_differing: np.ndarray
    """bool: audited tokens whose id changes when the text is decoded and encoded again."""
    recheck: Recheck | None = None
    """Of the one sample that was scored by a second path."""

    @property
    def num_audited(self) -> int:
        """Audited tokens."""
        return int(self.is_audited.sum())

    @property
    def num_attributed(self) -> int:
        """Audited tokens with a log-prob at every stage."""
        return int(self.attribution.is_attributed.sum())


def audited_tokens(sample: Sample) -> np.ndarray:
    """The tokens that the ledger may audit, bool [T]: sampled tokens that train."""
    return sample.loss_mask & (sample.weight_version >= 0)


def attribute_samples(
    samples: Sequence[Sample],
    scorer: Scorer,
    *,
    version: int,
    is_exact: bool,
    reencode: Callable[[np.ndarray], Reencoding],
) -> list[AuditedSample]:
    """Score samples at every stage.

    A token whose id changes on re-encoding has no a5 of its own: it keeps a4, so its ``tokens`` difference is 0, and
    ``is_differing`` marks it. The tokens after it are scored on the re-encoded ids.

    Args:
        samples: with sampled tokens.
        scorer: has the weights of ``version``, and possibly older ones.
        version: of the weights that will train on the samples.
        is_exact: whether the scorer's numerics promise that a row's bits do not depend on its batch.
        reencode: decodes ids and encodes the text again.

    Raises:
        WeightSyncError: the scorer has no weights of ``version``.
        NumericsError: a log-prob is not finite; the message names the sample.
        RecheckError: a second path gave another log-prob than stage a4, though ``is_exact``; names the token and both.
    """
    started = start_attribution(
        samples, scorer, version=version, is_exact=is_exact, reencode=reencode
    )
    return started.finish(started.score_present())


def start_attribution(
    samples: Sequence[Sample],
    scorer: Scorer,
    *,
    version: int,
    is_exact: bool,
    reencode: Callable[[np.ndarray], Reencoding],
) -> "StartedAttribution":
    """Make every forward pass except that of ``version`` over the unchanged samples; arguments and errors as above."""
    passes = Passes(samples, scorer)
    passes.prefetch_others(version)
    again = [reencode(sample.token_ids) for sample in samples]
    return StartedAttribution(
        samples=samples,
        version=version,
        is_exact=is_exact,
        passes=passes,
        rescored=rescore_one(
            samples, [audited_tokens(sample) for sample in samples], passes, version=version
        ),
        again=again,
        reencoded_scores=_score_reencoded(samples, again, scorer, version),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class StartedAttribution:
    """All stages are scored except one: the current weights on the recorded ids."""

    samples: Sequence[Sample]
    version: int
    """Of the current weights."""
    is_exact: bool
    """Whether the numerics promise that a row's bits do not depend on its batch."""
    passes: Passes
    rescored: Rescored | None
    """One sample under the current weights by a second path; None if no token is audited."""
    again: Sequence[Reencoding]
    """Of each sample."""
    reencoded_scores: Mapping[int, np.ndarray]
    """Index of a sample -> log-probs [U] on its re-encoded ids; absent where re-encoding changes nothing."""

    def score_present(self) -> list[np.ndarray]:
        """Make the missing pass: log-probs under the current weights, [T] for each sample."""
        present = self.passes.of_version(self.version, "free")
        self.passes.of_version(self.version, "replayed")
        for routes in ("replayed", "free"):
            self.passes.by_own_version(routes)
        return present

    def finish(self, present: Sequence[np.ndarray]) -> list[AuditedSample]:
        """The attributed samples, given the log-probs under the current weights, [T] for each sample.

        Raises:
            NumericsError: a log-prob is not finite; the message names the sample.
            RecheckError: see ``attribute_samples``.
        """
        self.passes.provide(self.version, present)
        a4 = self.passes.of_version(self.version, "free")
        a4_replayed = self.passes.of_version(self.version, "replayed")
        a2, is_held = self.passes.by_own_version("replayed")
        a3, _ = self.passes.by_own_version("free")
        audited = [
            _attributed(
                sample,
                trainer=(a2[i], a3[i], a4[i], self._a5(i, a4[i]), a4_replayed[i]),
                is_held=is_held[i],
                is_differing=self.again[i].partner_T < 0,
            )
            for i, sample in enumerate(self.samples)
        ]
        if self.rescored is not None:
            at = self.rescored.sample
            recheck = self.rescored.compare(self.samples[at], a4[at], is_exact=self.is_exact)
            audited[at] = replace(audited[at], recheck=recheck)
        return audited

    def _a5(self, i: int, a4: np.ndarray) -> np.ndarray:
        if i not in self.reencoded_scores:
            return a4
        is_known = known_again(self.samples[i], self.again[i])
        a5 = a4.copy()
        a5[is_known] = self.reencoded_scores[i][self.again[i].partner_T[is_known]]
        return a5


def _attributed(
    sample: Sample,
    *,
    trainer: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    is_held: np.ndarray,
    is_differing: np.ndarray,
) -> AuditedSample:
    is_audited = audited_tokens(sample)
    a1 = sample.rollout_log_probs.astype(np.float64)
    a2, a3, a4, a5, a4_replayed = trainer
    stages = Stages(
        a0=a1 - sample.kept_log_mass,
        a1=a1,
        a2=a2,
        a3=a3,
        a4=a4,
        a5=a5,
        a4_replayed=a4_replayed,
        is_attributed=is_audited & is_held,
    )
    return AuditedSample(
        sample=sample,
        is_audited=is_audited,
        attribution=attribute(stages, name=f"rollout {sample.rollout_id}"),
        is_differing=is_audited & is_differing,
    )


def _score_reencoded(
    samples: Sequence[Sample], again: Sequence[Reencoding], scorer: Scorer, version: int
) -> dict[int, np.ndarray]:
    """Scores on re-encoded ids; no forward pass for samples whose ids stay the same."""
    at = [
        i for i, one in enumerate(again) if not one.is_same and known_again(samples[i], one).any()
    ]
    if not at:
        return {}
    changed = [as_sample(samples[i], again[i]) for i in at]
    return dict(zip(at, Passes(changed, scorer).of_version(version, "free"), strict=True))
