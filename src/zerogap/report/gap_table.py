"""The gap by source over a whole run, raw and with replays."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum

from zerogap.obs import GAP_SOURCES
from zerogap.report.data import RunData
from zerogap.report.numbers import format_number, format_share, plural


@dataclass(frozen=True)
class GapCell:
    """A number of nats per token."""

    text: str
    is_zero: bool
    """Whether it is exactly 0."""


@dataclass(frozen=True)
class GapRow:
    """One source; cells are raw mean, raw max, open mean, open max."""

    source: str
    cells: tuple[GapCell, ...]


@dataclass(frozen=True)
class GapTable:
    """All sources, in the order of the ledger's stages."""

    rows: list[GapRow]
    caption: str


def gap_table(run: RunData) -> GapTable | None:
    """None if no step was attributed."""
    rows = [row for source in GAP_SOURCES for row in _row(run, source)]
    return GapTable(rows, " ".join(_sentences(run))) if rows else None


def _row(run: RunData, source: str) -> Iterator[GapRow]:
    cells = []
    for view in ("raw", "open"):
        largest = [value for _, value in run.points(f"gap/{source}/{view}/max")]
        if not largest:
            return
        cells += [_cell(_mean(run, f"gap/{source}/{view}/mean")), _cell(max(largest))]
    yield GapRow(source, tuple(cells))


def _mean(run: RunData, name: str) -> float:
    """Over audited tokens of all steps."""
    tokens = dict(run.points("gap/num_tokens"))
    points = [(value, tokens[step]) for step, value in run.points(name)]
    return fsum(value * weight for value, weight in points) / fsum(weight for _, weight in points)


def _cell(value: float) -> GapCell:
    return GapCell("exactly 0" if value == 0 else format_number(value), value == 0)


def _sentences(run: RunData) -> Iterator[str]:
    yield (
        f"Nats per token over {plural(run.total('gap/num_tokens'), 'audited token')}{_samples(run)}; ledger.jsonl has each step. "
        "Raw is a source without replays; open is what replays leave of it. The loss's ratios and weights contain numbers, routing and staleness, "
        "not sampling: they compare log-probs over the whole vocabulary."
    )
    if lost := run.total("gap/num_unattributed"):
        yield f"{plural(lost, 'more token')} could not be attributed, because the weights that sampled them are not available."
    if any(share for _, share in run.points("gap/tokens/differing_share")):
        share = _mean(run, "gap/tokens/differing_share")
        yield f"Re-tokenisation would change the ids of {format_share(share)}."


def _samples(run: RunData) -> str:
    samples = run.total("gap/num_samples")
    return f" of {plural(samples, 'sample')}" if samples else ""
