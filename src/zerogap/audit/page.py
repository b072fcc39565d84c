"""One page with a step's rollouts, every token coloured by its gap. Like the report, it works offline and escapes all text."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zerogap.audit.audited import Audit, open_total, stages
from zerogap.audit.table import COLUMNS, nats, recorded_share, rows
from zerogap.ledger import AuditedSample
from zerogap.obs import GAP_SOURCES
from zerogap.report.html import render, write_page
from zerogap.report.numbers import format_log_prob, format_number
from zerogap.report.tokens import (
    GAP_LEGEND,
    SAMPLE_FIELDS,
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
"""The rollouts with the largest gaps are shown; a browser lays out about 100,000 tokens in a second."""

_NUMBERS = (
    "open gap",
    *GAP_SOURCES,
    "a0 engine, kept set",
    "a1 engine",
    "a2 trainer, sampling weights and routes",
    "a3 trainer, own routes",
    "a4 trainer, weights that train",
    "a5 trainer, text re-encoded",
)
_FIELDS = ("position", "id", "role", *_NUMBERS, *SAMPLE_FIELDS)


@dataclass(frozen=True)
class _Card:
    """One rollout."""

    title: str
    outcome: str
    gap: str | None
    """The largest gap; None if no token was attributed."""
    gap_style: str
    facts: list[tuple[str, str]]
    prompt: str
    tokens: list[TokenView | Omission]


def write_audit_page(path: Path, audit: Audit) -> Path:
    """Write the page and return its path."""
    by_gap = sorted(audit.samples, key=_largest_gap, reverse=True)
    shown, hidden = by_gap[:MAX_ROLLOUTS], by_gap[MAX_ROLLOUTS:]
    path.parent.mkdir(parents=True, exist_ok=True)
    html = render(
        "audit.html",
        audit=audit,
        columns=COLUMNS,
        recorded_share=recorded_share(audit),
        table=rows(audit),
        cards=[_card(audited, audit.decode_token) for audited in shown],
        num_hidden=len(hidden),
        largest_hidden=nats(max(map(_largest_gap, hidden), default=0.0)),
        sources=GAP_SOURCES,
        legend=GAP_LEGEND,
        token_fields=_FIELDS,
    )
    return write_page(path, html)


def _largest_gap(audited: AuditedSample) -> float:
    gap = largest(np.abs(open_total(audited)))
    return -1.0 if math.isnan(gap) else gap


def _card(audited: AuditedSample, decode_token: DecodeToken) -> _Card:
    sample, total, log_probs = audited.sample, open_total(audited), stages(audited)
    worst = largest(np.abs(total))
    return _Card(
        title=visible(sample.rollout_id),
        outcome=str(sample.outcome).replace("_", " "),
        gap=None if math.isnan(worst) else nats(worst),
        gap_style=gap_style(worst),
        facts=_facts(audited),
        prompt=prompt_text(sample, decode_token),
        tokens=shorten(
            sample,
            np.abs(total),
            lambda at: _view(audited, at, total, log_probs, decode_token),
        ),
    )


def _facts(audited: AuditedSample) -> list[tuple[str, str]]:
    sample = audited.sample
    facts = [
        ("reward", "" if sample.reward is None else format_number(sample.reward)),
        ("tokens", token_counts(sample)),
        ("attributed", f"{audited.num_attributed:,} of {audited.num_audited:,}"),
        ("temperature", format_number(sample.temperature)),
    ]
    return [(name, value) for name, value in facts if value]


def _view(
    audited: AuditedSample,
    at: int,
    total: np.ndarray,
    log_probs: np.ndarray,
    decode_token: DecodeToken,
) -> TokenView:
    raw = audited.attribution.differences
    parts = {source: float(raw[source][at]) for source in GAP_SOURCES}
    # Sources that are exactly 0 get no class: that is most of them, and it keeps the page small.
    styles = [gap_style(abs(float(total[at])))]
    styles += [
        f"{source}-{gap_style(abs(value)).removeprefix('gap-')}"
        for source, value in parts.items()
        if value and not math.isnan(value)
    ]
    values = (float(total[at]), *parts.values(), *log_probs[:, at].tolist())
    return token_view(
        audited.sample,
        at,
        decode_token,
        styles=styles,
        numbers=[format_log_prob(v) for v in values],
    )
