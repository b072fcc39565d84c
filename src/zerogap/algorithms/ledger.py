"""The ledger: the gap as a sum of five differences.

Six log-probs of one sampled token, the *stages*. Each changes one thing from the stage before it:

=====  ==========================================================  =====================
stage  log-prob of the token                                       difference, by source
=====  ==========================================================  =====================
a0     the engine's, within the set it could sample from           -
a1     the engine's, over the whole vocabulary                     sampling
a2     the trainer's, with the sampling weights and their routes   numbers
a3     the same with the trainer's own routing                     routing
a4     the same with the weights that train now                    staleness
a5     the same on the re-encoded ids                              tokens
=====  ==========================================================  =====================

All in float64, nats, at the sample's temperature. *Raw* is a source without any replay, and the raw differences of a token
add up to a5 - a0. *Open* is what replays leave of it, and the open differences add up to the last stage that a replay leaves, less a0.

A replay moves stages. Ids travel, so the loss is at a4 and never at a5. A loss that replays routes is at none of the six: it has the weights
that train now *and* the routes of the sampling pass. That is the seventh log-prob, a4r. With routing replayed, routing is 0 and
staleness is a4r - a2, so that the open sum is a4r - a0. Without experts a3 is a2 and a4r is a4.

The loss sees less than the open gap. Its d = old_log_probs - rollout_log_probs is a4 - a1 (a4r - a1 with routes replayed): numbers, routing
and staleness. Sampling is not in d, since both log-probs are over the whole vocabulary: no ratio and no weight shows what truncation does.
T tokens of a sample.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from zerogap.algorithms.mismatch import GapStatistics
from zerogap.errors import NumericsError
from zerogap.obs import GAP_SOURCES

REPLAYED = ("tokens",)
"""Sources that a replay closes: the loss gets the sampled ids, never re-encoded text."""

_STAGE_NAMES = ("a0", "a1", "a2", "a3", "a4", "a5", "a4r")


@dataclass(frozen=True, eq=False, kw_only=True)
class Stages:
    """The log-probs of a sample's tokens, float64 [T] each; slots outside ``is_attributed`` may hold anything."""

    a0: np.ndarray
    a1: np.ndarray
    a2: np.ndarray
    a3: np.ndarray
    a4: np.ndarray
    a5: np.ndarray
    a4_replayed: np.ndarray
    """a4r: the weights that train now, with the routes of the sampling pass; a4 for a dense model."""
    is_attributed: np.ndarray
    """bool [T]: audited tokens with all log-probs."""

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """a0 to a5."""
        return (self.a0, self.a1, self.a2, self.a3, self.a4, self.a5)


@dataclass(frozen=True, eq=False, kw_only=True)
class Attribution:
    """A sample's differences, float64 [T], NaN outside ``is_attributed``."""

    differences: Mapping[str, np.ndarray]
    """Source -> its raw difference."""
    staleness_on_routes: np.ndarray
    """a4r - a2: staleness where routes are replayed."""
    total: np.ndarray
    """a5 - a0: the raw total."""
    is_attributed: np.ndarray
    """bool [T]."""

    def open(self, source: str, replayed: Collection[str]) -> np.ndarray:
        """What the replays leave of a source: 0 of a replayed one, and of staleness what old weights do on replayed routes."""
        if source in replayed:
            return np.where(self.is_attributed, 0.0, np.nan)
        if source == "staleness" and "routing" in replayed:
            return self.staleness_on_routes
        return self.differences[source]

    def open_total(self, replayed: Collection[str]) -> np.ndarray:
        """The sum of the open sources."""
        return np.sum([self.open(source, replayed) for source in GAP_SOURCES], axis=0)


@dataclass(frozen=True, kw_only=True)
class SourceStatistics:
    """One source over the attributed tokens."""

    raw: GapStatistics
    open: GapStatistics


@dataclass(frozen=True, kw_only=True)
class LedgerStatistics:
    """All sources over the same attributed tokens, so that signed means add up."""

    sources: Mapping[str, SourceStatistics]
    total: SourceStatistics
    """``open`` is the gap: from the distribution that drew a token to the policy that trains on it. Sampling is part of it."""


def attribute(stages: Stages, *, name: str) -> Attribution:
    """The five differences of a sample's tokens.

    They add up by construction, which says nothing about the log-probs: a stage that was measured on other tokens
    moves two sources and leaves the sum. ``zerogap.ledger`` scores a token a second time to notice that.

    Args:
        stages: the sample's log-probs.
        name: of the sample, for an error.

    Raises:
        NumericsError: a log-prob of an attributed token is NaN or infinite.
    """
    is_known_T = stages.is_attributed
    named = zip(_STAGE_NAMES, (*stages.columns, stages.a4_replayed), strict=True)
    for stage, column_T in named:
        bad = np.flatnonzero(is_known_T & ~np.isfinite(column_T))
        if len(bad):
            msg = f"{name}, position {bad[0]}: the log-prob at stage {stage} is {column_T[bad[0]]}, and an audited token needs a finite one at every stage; look for the first NaN in this sample's forward pass"
            raise NumericsError(msg)
    masked = [np.where(is_known_T, column_T, np.nan) for column_T in stages.columns]
    steps = zip(GAP_SOURCES, pairwise(masked), strict=True)
    return Attribution(
        differences={source: after - before for source, (before, after) in steps},
        staleness_on_routes=np.where(is_known_T, stages.a4_replayed, np.nan) - masked[2],
        total=masked[-1] - masked[0],
        is_attributed=is_known_T,
    )


def ledger_statistics(
    attributions: Sequence[Attribution], *, replayed: Collection[str] = REPLAYED
) -> LedgerStatistics | None:
    """Statistics of each source over the attributed tokens of all samples; None if no token is attributed.

    Args:
        attributions: of the audited samples.
        replayed: sources that a replay closes.
    """
    if not any(one.is_attributed.any() for one in attributions):
        return None

    def over(columns: Sequence[np.ndarray]) -> GapStatistics:
        kept = [c[one.is_attributed] for c, one in zip(columns, attributions, strict=True)]
        return GapStatistics.of(np.concatenate(kept))

    sources = {
        source: SourceStatistics(
            raw=over([one.differences[source] for one in attributions]),
            open=over([one.open(source, replayed) for one in attributions]),
        )
        for source in GAP_SOURCES
    }
    total = SourceStatistics(
        raw=over([one.total for one in attributions]),
        open=over([one.open_total(replayed) for one in attributions]),
    )
    return LedgerStatistics(sources=sources, total=total)


def choose_samples(
    num_tokens_B: np.ndarray,
    groups_B: Sequence[str],
    *,
    share: float,
    min_samples: int,
    seed: Sequence[int],
) -> list[int]:
    """Indices, ascending, of random samples that together hold ``share`` of the tokens; at least ``min_samples``.

    Samples are chosen in pairs of siblings, whose shared prompt is computed once: four samples of two prompts cost
    little more than half of four samples of four prompts. Every pair is equally likely.

    Args:
        num_tokens_B: int [B]: tokens of each sample that count; samples with 0 are never chosen.
        groups_B: the group of each sample.
        share: in (0, 1].
        min_samples: all samples if there are fewer.
        seed: the same seed chooses the same samples.
    """
    rng = np.random.default_rng(list(seed))
    members: dict[str, list[int]] = {}
    for sample in rng.permutation(np.flatnonzero(num_tokens_B > 0)).tolist():
        members.setdefault(groups_B[sample], []).append(sample)
    pairs = [group[at : at + 2] for group in members.values() for at in range(0, len(group), 2)]
    order = [sample for at in rng.permutation(len(pairs)) for sample in pairs[at]]
    # Take samples until they hold the share.
    reached = np.cumsum(num_tokens_B[order])
    needed = int(np.searchsorted(reached, share * num_tokens_B.sum(), side="left")) + 1
    return sorted(order[: max(needed, min_samples)])
