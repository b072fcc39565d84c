"""The ledger as table rows: each source over all tokens, and the value that the run recorded for its audited share."""

from collections.abc import Mapping
from dataclasses import dataclass

from zerogap.algorithms import SourceStatistics
from zerogap.audit.audited import Audit
from zerogap.obs import GAP_SOURCES
from zerogap.report.numbers import format_number

COLUMNS = ("raw mean", "raw max", "open mean", "open max", "signed", "k3", "recorded")
"""Nats per token: mean and maximum of |difference|, raw and open; signed mean and k3 of the open difference; the open
mean that the run recorded."""


@dataclass(frozen=True)
class Row:
    """One source, or the total."""

    name: str
    cells: tuple[str, ...]
    """One per column of ``COLUMNS``; ``0.0`` is exactly 0, ``-`` was not recorded."""
    is_zero: bool
    """Whether its open difference is exactly 0."""


def rows(audit: Audit) -> list[Row]:
    """The five sources in the order of the stages, and their total; [] if no token was attributed."""
    statistics = audit.entry.statistics
    if statistics is None:
        return []
    then = audit.recorded
    return [
        *(_row(s, statistics.sources[s], then, f"gap/{s}/open/mean") for s in GAP_SOURCES),
        _row("total", statistics.total, then, "gap/total/mean"),
    ]


def recorded_share(audit: Audit) -> str:
    """What the run's own measurement was over; empty if it did not say."""
    counts = [audit.recorded.get(f"gap/num_{what}") for what in ("tokens", "samples")]
    if None in counts:
        return ""
    tokens, samples = counts
    return f", over {tokens:,.0f} tokens of {samples:,.0f} samples"


def nats(value: float) -> str:
    """A number of nats; ``0.0`` is exactly 0."""
    return "0.0" if value == 0 else format_number(value)


def _row(name: str, source: SourceStatistics, recorded: Mapping[str, float], metric: str) -> Row:
    raw, seen = source.raw, source.open
    values = (raw.mean, raw.max, seen.mean, seen.max, seen.signed_mean, seen.k3)
    then = nats(recorded[metric]) if metric in recorded else "-"
    return Row(name, (*map(nats, values), then), is_zero=seen.max == 0)
