"""A step's ledger over all its tokens, and the tokens that stand out in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerogap.algorithms import REPLAYED
from zerogap.ledger import AuditedRecord, LedgerEntry
from zerogap.obs import GAP_SOURCES


@dataclass(frozen=True, eq=False, kw_only=True)
class Audit:
    """A recorded step, scored again."""

    run: str
    """Name of the run's folder."""
    origin: str
    """How the weights were found."""
    is_proven: bool
    """Whether they have the fingerprint that the run recorded."""
    entry: LedgerEntry
    """What ``ledger.jsonl`` has of the step, over every token that trained."""
    records: Sequence[AuditedRecord]
    """In the order in which the run recorded them."""
    recorded: Mapping[str, float]
    """``gap/*`` as the run measured it then, on its audited share."""
    decode_token: Callable[[int], str]
    """Text of one id."""

    def to_json(self, num_worst: int) -> dict[str, Any]:
        """Plain values, with so many of the worst tokens."""
        return {
            "run": self.run,
            "weights": {"origin": self.origin, "is_proven": self.is_proven},
            **self.entry.record(),
            "worst": [token.to_json() for token in worst_tokens(self.records, num_worst)],
            "recorded": dict(self.recorded),
        }


def open_total(record: AuditedRecord) -> np.ndarray:
    """float64 [T]: the gap that the loss sees, nats; NaN where nothing was attributed."""
    return record.attribution.open_total(REPLAYED)


def rungs(record: AuditedRecord) -> np.ndarray:
    """float64 [6, T]: a0 to a5, nats; NaN where nothing was attributed."""
    sample, differences = record.sample, record.attribution.differences
    a1 = np.where(record.attribution.is_attributed, sample.rollout_log_probs, np.nan)
    ladder = [a1 - sample.kept_log_mass, a1]
    # Differences of float32 log-probs are exact in float64, so adding them up again gives the log-probs themselves.
    for source in GAP_SOURCES[1:]:
        ladder.append(ladder[-1] + differences[source])
    return np.stack(ladder)


@dataclass(frozen=True, eq=False)
class AuditedToken:
    """One token of a record."""

    record: AuditedRecord
    position: int

    @property
    def gap(self) -> float:
        """What the loss sees, nats."""
        return float(open_total(self.record)[self.position])

    @property
    def sources(self) -> dict[str, float]:
        """Source -> its raw difference, nats."""
        raw = self.record.attribution.differences
        return {source: float(raw[source][self.position]) for source in GAP_SOURCES}

    @property
    def rungs(self) -> list[float]:
        """a0 to a5, nats."""
        return rungs(self.record)[:, self.position].tolist()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        sample, at = self.record.sample, self.position
        return {
            "rollout_id": sample.rollout_id,
            "position": at,
            "token_id": int(sample.token_ids[at]),
            "weight_version": int(sample.weight_version[at]),
            "kept_log_mass": float(sample.kept_log_mass[at]),
            "gap": self.gap,
            "sources": self.sources,
            "rungs": self.rungs,
        }


def worst_tokens(records: Sequence[AuditedRecord], count: int) -> list[AuditedToken]:
    """At most ``count`` tokens with a gap: by what the loss sees of it, then by the largest raw source.

    A token whose six log-probs are equal is none of them.
    """
    ranked = sorted(_with_a_gap(records), key=lambda entry: entry[0], reverse=True)
    return [token for _, token in ranked[:count]]


def _with_a_gap(
    records: Sequence[AuditedRecord],
) -> Iterator[tuple[tuple[float, float], AuditedToken]]:
    for record in records:
        raw = np.abs(np.stack([record.attribution.differences[s] for s in GAP_SOURCES]))
        seen, largest = np.abs(open_total(record)), raw.max(axis=0)
        for at in np.flatnonzero(record.attribution.is_attributed & (largest > 0)):
            yield (float(seen[at]), float(largest[at])), AuditedToken(record, int(at))
