"""A step's rollouts on one page, every token coloured by its gap. Offline, escaped, without foreign scripts, as the report."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zerogap.audit.audited import Audit, open_total, rungs
from zerogap.audit.table import COLUMNS, nats, rows
from zerogap.ledger import AuditedRecord
from zerogap.obs import GAP_SOURCES
from zerogap.report.html import render, write_page
from zerogap.report.numbers import format_log_prob, format_number
from zerogap.report.tokens import (
    GAP_LEGEND,
    RECORD_FIELDS,
    DecodeToken,
    Omission,
    TokenView,
    gap_style,
    largest,
    prompt_text,
    shorten,
    token_counts,
    token_view,
    visible,
)

MAX_ROLLOUTS = 64
"""Shown, those with the largest gap; a browser lays out some 100,000 tokens in a second."""

_NUMBERS = (
    "gap that the loss sees",
    *GAP_SOURCES,
    "a0 engine, kept set",
    "a1 engine",
    "a2 trainer, its version and routes",
    "a3 trainer, own routes",
    "a4 trainer, weights now",
    "a5 trainer, text encoded again",
)
_FIELDS = ("position", "id", "role", *_NUMBERS, *RECORD_FIELDS)


@dataclass(frozen=True)
class _Card:
    """One rollout."""

    title: str
    outcome: str
    gap: str | None
    """The largest; None if no token was attributed."""
    gap_style: str
    facts: list[tuple[str, str]]
    prompt: str
    tokens: list[TokenView | Omission]


def write_audit_page(path: Path, audit: Audit) -> Path:
    """Write the page and return its path."""
    by_gap = sorted(audit.records, key=_largest_gap, reverse=True)
    shown, hidden = by_gap[:MAX_ROLLOUTS], by_gap[MAX_ROLLOUTS:]
    path.parent.mkdir(parents=True, exist_ok=True)
    html = render(
        "audit.html",
        audit=audit,
        columns=COLUMNS,
        table=rows(audit),
        cards=[_card(record, audit.decode_token) for record in shown],
        num_hidden=len(hidden),
        largest_hidden=nats(max(map(_largest_gap, hidden), default=0.0)),
        sources=GAP_SOURCES,
        legend=GAP_LEGEND,
        token_fields=_FIELDS,
    )
    return write_page(path, html)


def _largest_gap(record: AuditedRecord) -> float:
    gap = largest(np.abs(open_total(record)))
    return -1.0 if math.isnan(gap) else gap


def _card(record: AuditedRecord, decode_token: DecodeToken) -> _Card:
    sample, total, ladder = record.sample, open_total(record), rungs(record)
    worst = largest(np.abs(total))
    return _Card(
        title=visible(sample.rollout_id),
        outcome=str(sample.outcome).replace("_", " "),
        gap=None if math.isnan(worst) else nats(worst),
        gap_style=gap_style(worst),
        facts=_facts(record),
        prompt=prompt_text(sample, decode_token),
        tokens=shorten(
            sample,
            np.abs(total),
            lambda at: _view(record, at, total, ladder, decode_token),
        ),
    )


def _facts(record: AuditedRecord) -> list[tuple[str, str]]:
    sample = record.sample
    facts = [
        ("reward", "" if sample.reward is None else format_number(sample.reward)),
        ("tokens", token_counts(sample)),
        ("attributed", f"{record.num_attributed:,} of {record.num_audited:,}"),
        ("temperature", format_number(sample.temperature)),
    ]
    return [(name, value) for name, value in facts if value]


def _view(
    record: AuditedRecord,
    at: int,
    total: np.ndarray,
    ladder: np.ndarray,
    decode_token: DecodeToken,
) -> TokenView:
    raw = record.attribution.differences
    parts = {source: float(raw[source][at]) for source in GAP_SOURCES}
    # Exactly 0 needs no class of its own source: most tokens have nothing else, and a page stays small.
    styles = [gap_style(abs(float(total[at])))]
    styles += [
        f"{source}-{gap_style(abs(value)).removeprefix('gap-')}"
        for source, value in parts.items()
        if value and not math.isnan(value)
    ]
    values = (float(total[at]), *parts.values(), *ladder[:, at].tolist())
    return token_view(
        record.sample, at, decode_token, styles=styles, numbers=[format_log_prob(v) for v in values]
    )
