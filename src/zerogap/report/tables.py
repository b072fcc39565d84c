"""The tables of the page: outcomes, exclusions, settings, environment, metrics by step."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerogap.obs import metric
from zerogap.report.data import RunData
from zerogap.report.numbers import format_number, format_share
from zerogap.types import Outcome

MAX_STEP_ROWS = 200
"""Longer runs show evenly spaced steps; metrics.jsonl has all of them."""

_STEP_COLUMNS = (
    "reward/mean",
    "eval/reward/mean",
    "gap/total/mean",
    "gap/total/max",
    "policy/entropy",
    "policy/clip_fraction",
    "train/grad_norm",
    "rollout/completion_len/mean",
    "engine/tokens_per_s",
    "train/tokens_per_s",
    "step/time_s",
)


@dataclass(frozen=True)
class Count:
    """Number of samples or groups of one kind."""

    label: str
    description: str
    count: str
    share: str
    percent: float
    """Of all samples or groups, for the bar."""
    is_failure: bool = False


@dataclass(frozen=True)
class StepTable:
    """Metrics by step."""

    columns: list[str]
    rows: list[list[str]]
    """The step, then one text per column; empty if not measured."""
    every: int
    """Every this many steps are shown."""


def outcome_counts(run: RunData) -> list[Count]:
    """Samples by outcome, without kinds that never occurred."""
    total = run.total("rollout/num_samples") or sum(
        run.total(f"outcome/{kind}") for kind in Outcome
    )
    return [
        _count(
            str(kind).replace("_", " "), "", run.total(f"outcome/{kind}"), total, not kind.is_valid
        )
        for kind in Outcome
        if run.points(f"outcome/{kind}")
    ]


def exclusion_counts(run: RunData) -> list[Count]:
    """Samples and groups that trained nothing, by reason."""
    return [
        *_counts(
            run,
            ("excluded/invalid_outcome", "excluded/no_loss_tokens", "excluded/masked"),
            "rollout/num_samples",
        ),
        *_counts(run, ("group/without_signal", "group/alone"), "group/count"),
    ]


def step_table(run: RunData) -> StepTable:
    """Evenly spaced steps, always with the last one."""
    columns = [name for name in _STEP_COLUMNS if run.points(name)]
    every = -(-len(run.entries) // MAX_STEP_ROWS) or 1
    shown = run.entries[::-1][::every][::-1]
    rows = [
        [str(r["step"]), *(format_number(r[c]) if c in r else "" for c in columns)] for r in shown
    ]
    return StepTable(columns, rows, every)


def setting_rows(flat: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Dotted key, and value as in a recipe."""
    return [(key, json.dumps(value, ensure_ascii=False)) for key, value in flat.items()]


def environment_rows(flat: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Key and text, without unknown values."""
    return [(key, str(value)) for key, value in flat.items() if value is not None]


def _counts(run: RunData, names: tuple[str, ...], total: str) -> Iterator[Count]:
    for name in names:
        if run.points(name):
            label = name.replace("/", ": ").replace("_", " ")
            yield _count(label, metric(name).description, run.total(name), run.total(total), True)


def _count(label: str, description: str, count: float, total: float, is_failure: bool) -> Count:
    share = count / total if total else 0.0
    return Count(label, description, f"{count:,.0f}", format_share(share), 100 * share, is_failure)
