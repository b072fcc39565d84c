"""One step of the ledger, as a line of ``ledger.jsonl`` and as metrics."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zerogap.algorithms import (
    REPLAYED,
    GapStatistics,
    LedgerStatistics,
    SourceStatistics,
    ledger_statistics,
)
from zerogap.ledger.climb import AuditedRecord
from zerogap.obs import GAP_SOURCES

_NUM_WORST = 5


@dataclass(frozen=True, kw_only=True)
class WorstToken:
    """A token and the source that moved it most."""

    rollout_id: str
    position: int
    source: str
    value: float
    """Its difference, signed, nats."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """What the ledger found at one step."""

    step: int
    version: int
    """Of the weights that trained on the samples."""
    rollout_ids: tuple[str, ...]
    """Audited records."""
    num_tokens: int
    """Audited tokens with a number on every rung: the statistics are over them."""
    num_unattributed: int
    """Audited tokens whose weights are gone."""
    num_differing: int
    """Audited tokens that encoding the text again puts other ids in the place of."""
    statistics: LedgerStatistics | None
    """None without attributed tokens."""
    worst: tuple[WorstToken, ...] = ()
    """Tokens with the largest difference of one source that is not replayed, largest first; exact zeros are not among them."""

    @classmethod
    def of(
        cls,
        records: Sequence[AuditedRecord],
        *,
        step: int,
        version: int,
    ) -> "LedgerEntry":
        """Summed up over records.

        Args:
            records: from ``climb``; may be empty.
            step: the one that trains on them.
            version: of the weights that do.
        """
        num_tokens = sum(record.num_attributed for record in records)
        attributions = [record.attribution for record in records]
        return cls(
            step=step,
            version=version,
            rollout_ids=tuple(record.sample.rollout_id for record in records),
            num_tokens=num_tokens,
            num_unattributed=sum(record.num_audited for record in records) - num_tokens,
            num_differing=sum(int(record.is_differing.sum()) for record in records),
            statistics=ledger_statistics(attributions),
            worst=_worst(records, [s for s in GAP_SOURCES if s not in REPLAYED]),
        )

    @property
    def num_audited(self) -> int:
        """All audited tokens."""
        return self.num_tokens + self.num_unattributed

    @property
    def differing_share(self) -> float:
        """Of the audited tokens; 0 if there are none."""
        return self.num_differing / self.num_audited if self.num_audited else 0.0

    def record(self) -> dict[str, Any]:
        """The line of ``ledger.jsonl``."""
        statistics = self.statistics
        return {
            "step": self.step,
            "version": self.version,
            "rollouts": list(self.rollout_ids),
            "num_tokens": self.num_tokens,
            "num_unattributed": self.num_unattributed,
            "num_differing": self.num_differing,
            "differing_share": self.differing_share,
            "sources": {}
            if statistics is None
            else {name: _views(statistics.sources[name]) for name in GAP_SOURCES},
            "total": {} if statistics is None else _views(statistics.total),
            "worst": [asdict(token) for token in self.worst],
        }

    def metrics(self) -> dict[str, float]:
        """``gap/*`` under their declared names; what was not measured is left out."""
        counts = {
            "gap/num_records": float(len(self.rollout_ids)),
            "gap/num_tokens": float(self.num_tokens),
            "gap/num_unattributed": float(self.num_unattributed),
        }
        if self.statistics is None:
            return counts
        total, sources = self.statistics.total.open, self.statistics.sources
        return {
            "gap/total/mean": total.mean,
            "gap/total/max": total.max,
            "gap/total/signed_mean": total.signed_mean,
            "gap/total/k3": total.k3,
            **counts,
            "gap/tokens/differing_share": self.differing_share,
            **{
                f"gap/{name}/{view}/{statistic}": getattr(getattr(sources[name], view), statistic)
                for name in GAP_SOURCES
                for view in ("raw", "open")
                for statistic in ("mean", "max")
            },
        }


def _views(source: SourceStatistics) -> dict[str, dict[str, float]]:
    return {"raw": _numbers(source.raw), "open": _numbers(source.open)}


def _numbers(statistics: GapStatistics) -> dict[str, float]:
    return {name: getattr(statistics, name) for name in ("mean", "signed_mean", "max", "k3")}


def _worst(records: Sequence[AuditedRecord], sources: Sequence[str]) -> tuple[WorstToken, ...]:
    found = [token for record in records for token in _moved(record, sources)]
    return tuple(sorted(found, key=lambda token: -abs(token.value))[:_NUM_WORST])


def _moved(record: AuditedRecord, sources: Sequence[str]) -> list[WorstToken]:
    """Each token that a source moved most, where it moved at all; no more than will be shown."""
    differences = np.stack([record.attribution.differences[name] for name in sources])
    size = np.nan_to_num(np.abs(differences))
    largest = size.max(0)
    first = np.argsort(-largest, kind="stable")[:_NUM_WORST]
    return [
        WorstToken(
            rollout_id=record.sample.rollout_id,
            position=int(at),
            source=sources[int(size[:, at].argmax())],
            value=float(differences[size[:, at].argmax(), at]),
        )
        for at in first
        if largest[at] > 0
    ]
