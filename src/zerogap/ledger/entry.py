"""What the ledger found at one step, as a line of ``ledger.jsonl`` and as metrics."""

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
from zerogap.ledger.attribution import AuditedSample
from zerogap.ledger.recheck import Recheck
from zerogap.obs import GAP_SOURCES

_NUM_WORST = 5


@dataclass(frozen=True, kw_only=True)
class WorstToken:
    """A token and its largest source."""

    rollout_id: str
    position: int
    source: str
    value: float
    """Signed difference of that source, nats."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """What the ledger found at one step."""

    step: int
    version: int
    """Of the weights that trained on the samples."""
    rollout_ids: tuple[str, ...]
    """Audited samples."""
    num_tokens: int
    """Audited tokens with a log-prob at every stage; the statistics are over them."""
    num_unattributed: int
    """Audited tokens whose weights are no longer available."""
    num_differing: int
    """Audited tokens whose id changes when the text is re-encoded."""
    statistics: LedgerStatistics | None
    """None without attributed tokens."""
    worst: tuple[WorstToken, ...] = ()
    """Tokens with the largest difference from one source that is not replayed, largest first; never exact zeros."""

    recheck: Recheck | None = None
    """The sample that a second path scored too; None if nothing was audited."""

    @classmethod
    def of(
        cls,
        audited: Sequence[AuditedSample],
        *,
        step: int,
        version: int,
    ) -> "LedgerEntry":
        """The entry of a step.

        Args:
            audited: samples from ``attribute_samples``; may be empty.
            step: the one that trains on them.
            version: of the weights that do.
        """
        num_tokens = sum(one.num_attributed for one in audited)
        attributions = [one.attribution for one in audited]
        return cls(
            step=step,
            version=version,
            rollout_ids=tuple(one.sample.rollout_id for one in audited),
            num_tokens=num_tokens,
            num_unattributed=sum(one.num_audited for one in audited) - num_tokens,
            num_differing=sum(int(one.is_differing.sum()) for one in audited),
            statistics=ledger_statistics(attributions),
            worst=_worst(audited, [s for s in GAP_SOURCES if s not in REPLAYED]),
            recheck=next((one.recheck for one in audited if one.recheck is not None), None),
        )

    @property
    def num_audited(self) -> int:
        """All audited tokens."""
        return self.num_tokens + self.num_unattributed

    @property
    def differing_share(self) -> float:
        """``num_differing`` over ``num_audited``; 0 if nothing was audited."""
        return self.num_differing / self.num_audited if self.num_audited else 0.0

    def to_json(self) -> dict[str, Any]:
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
            "recheck": None if self.recheck is None else asdict(self.recheck),
        }

    def metrics(self) -> dict[str, float]:
        """``gap/*`` under their declared names, without what was not measured."""
        counts = {
            "gap/num_samples": float(len(self.rollout_ids)),
            "gap/num_tokens": float(self.num_tokens),
            "gap/num_unattributed": float(self.num_unattributed),
            **({} if self.recheck is None else {"gap/recheck/max": self.recheck.difference}),
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
            **{
                f"gap/{name}/open/signed_mean": sources[name].open.signed_mean
                for name in GAP_SOURCES
            },
        }


def _views(source: SourceStatistics) -> dict[str, dict[str, float]]:
    return {"raw": _numbers(source.raw), "open": _numbers(source.open)}


def _numbers(statistics: GapStatistics) -> dict[str, float]:
    return {name: getattr(statistics, name) for name in ("mean", "signed_mean", "max", "k3")}


def _worst(audited: Sequence[AuditedSample], sources: Sequence[str]) -> tuple[WorstToken, ...]:
    found = [token for one in audited for token in _moved(one, sources)]
    return tuple(sorted(found, key=lambda token: -abs(token.value))[:_NUM_WORST])


def _moved(one: AuditedSample, sources: Sequence[str]) -> list[WorstToken]:
    """The tokens with a difference, each with its largest source; at most ``_NUM_WORST``."""
    differences = np.stack([one.attribution.differences[name] for name in sources])
    size = np.nan_to_num(np.abs(differences))
    largest = size.max(0)
    first = np.argsort(-largest, kind="stable")[:_NUM_WORST]
    return [
        WorstToken(
            rollout_id=one.sample.rollout_id,
            position=int(at),
            source=sources[int(size[:, at].argmax())],
            value=float(differences[size[:, at].argmax(), at]),
        )
        for at in first
        if largest[at] > 0
    ]
