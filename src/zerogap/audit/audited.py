"""The ledger of a step over all its tokens, and the tokens with the largest gaps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerogap.algorithms import REPLAYED
from zerogap.ledger import AuditedSample, LedgerEntry
from zerogap.obs import GAP_SOURCES


@dataclass(frozen=True, eq=False, kw_only=True)
class Audit:
    """A recorded step, scored again."""

    run: str
    """Name of the run's folder."""
    origin: str
    """Where the weights come from, for people."""
    is_proven: bool
    """Whether the run recorded the weights' fingerprint, so that it could be compared: it is equal."""
    entry: LedgerEntry
    """Like the step's line in ``ledger.jsonl``, but over every token that trained."""
    samples: Sequence[AuditedSample]
    """In the order of the run."""
    recorded: Mapping[str, float]
    """``gap/*`` as the run measured it, on its audited share."""
    decode_token: Callable[[int], str]
    """Text of one id."""

    def to_json(self, num_worst: int) -> dict[str, Any]:
        """Values that JSON can hold, with the ``num_worst`` worst tokens."""
        return {
            "run": self.run,
            "weights": {"origin": self.origin, "is_proven": self.is_proven},
            **self.entry.to_json(),
            "worst": [token.to_json() for token in worst_tokens(self.samples, num_worst)],
            "recorded": dict(self.recorded),
        }


def open_total(audited: AuditedSample) -> np.ndarray:
    """float64 [T]: the whole open gap, sampling included, nats; NaN at tokens that were not attributed."""
    return audited.attribution.open_total(REPLAYED)


def stages(audited: AuditedSample) -> np.ndarray:
    """float64 [6, T]: log-probs a0 to a5, nats; NaN at tokens that were not attributed."""
    sample, differences = audited.sample, audited.attribution.differences
    a1 = np.where(audited.attribution.is_attributed, sample.rollout_log_probs, np.nan)
    log_probs = [a1 - sample.kept_log_mass, a1]
    # Differences of float32 log-probs are exact in float64, so their sums are the log-probs.
    for source in GAP_SOURCES[1:]:
        log_probs.append(log_probs[-1] + differences[source])
    return np.stack(log_probs)


@dataclass(frozen=True, eq=False)
class AuditedToken:
    """One token of an audited sample."""

    audited: AuditedSample
    position: int

    @property
    def gap(self) -> float:
        """The whole open gap, sampling included, nats."""
        return float(open_total(self.audited)[self.position])

    @property
    def sources(self) -> dict[str, float]:
        """Source -> its raw difference, nats."""
        raw = self.audited.attribution.differences
        return {source: float(raw[source][self.position]) for source in GAP_SOURCES}

    @property
    def stages(self) -> list[float]:
        """Log-probs a0 to a5, nats."""
        return stages(self.audited)[:, self.position].tolist()

    def to_json(self) -> dict[str, Any]:
        """Values that JSON can hold."""
        sample, at = self.audited.sample, self.position
        return {
            "rollout_id": sample.rollout_id,
            "position": at,
            "token_id": int(sample.token_ids[at]),
            "weight_version": int(sample.weight_version[at]),
            "kept_log_mass": float(sample.kept_log_mass[at]),
            "gap": self.gap,
            "sources": self.sources,
            "stages": self.stages,
        }


def worst_tokens(samples: Sequence[AuditedSample], count: int) -> list[AuditedToken]:
    """At most ``count`` tokens with a gap, ordered by the open gap, then by the largest raw source.

    Tokens whose six log-probs are equal are left out.
    """
    ranked = sorted(_with_a_gap(samples), key=lambda entry: entry[0], reverse=True)
    return [token for _, token in ranked[:count]]


def _with_a_gap(
    samples: Sequence[AuditedSample],
) -> Iterator[tuple[tuple[float, float], AuditedToken]]:
    for audited in samples:
        raw = np.abs(np.stack([audited.attribution.differences[s] for s in GAP_SOURCES]))
        seen, largest = np.abs(open_total(audited)), raw.max(axis=0)
        for at in np.flatnonzero(audited.attribution.is_attributed & (largest > 0)):
            yield (float(seen[at]), float(largest[at])), AuditedToken(audited, int(at))
