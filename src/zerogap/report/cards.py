"""Rollouts as cards: prompt, completion, grade."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from zerogap.report.numbers import format_number
from zerogap.report.rollouts import KeptRollout, RankedRollouts
from zerogap.report.tokens import (
    DecodeToken,
    Omission,
    TokenView,
    completion_views,
    gap_style,
    largest,
    prompt_text,
    token_counts,
    visible,
)
from zerogap.types import FinishReason, Sample, Turn


@dataclass(frozen=True)
class Card:
    """One rollout."""

    title: str
    reward: str | None
    """None if the rollout failed."""
    reward_parts: list[tuple[str, str]]
    outcome: str
    is_valid: bool
    detail: str
    """The failure, if any."""
    facts: list[tuple[str, str]]
    gap: str | None
    """The largest gap; None if no token was compared."""
    gap_style: str
    prompt: str
    tokens: Sequence[TokenView | Omission]


@dataclass(frozen=True)
class CardList:
    """Cards under one heading."""

    heading: str
    cards: list[Card]


def build_cards(ranked: RankedRollouts, decode_token: DecodeToken) -> list[CardList]:
    """The lists with at least one card."""
    lists = (("Best", ranked.best), ("Worst", ranked.worst), ("Failed", ranked.failed))
    return [
        CardList(heading, [_card(rollout, decode_token) for rollout in rollouts])
        for heading, rollouts in lists
        if rollouts
    ]


def describe_ranking(ranked: RankedRollouts) -> str:
    """Where the shown rollouts come from."""
    first, last = ranked.steps[0], ranked.steps[-1]
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    if not ranked.num_scored:
        return f"From {steps}; no rollout has a reward."
    rewards = [rollout.sample.reward or 0.0 for rollout in (*ranked.best, *ranked.worst)]
    low, high = format_number(min(rewards)), format_number(max(rewards))
    spread = f"all with reward {low}" if low == high else f"with rewards from {low} to {high}"
    return f"From {steps}: {ranked.num_scored:,} scored rollouts, {spread}. Among equal rewards, one per prompt comes first."


def _card(rollout: KeptRollout, decode_token: DecodeToken) -> Card:
    sample, gap = rollout.sample, largest(rollout.gap)
    style = gap_style(gap)
    return Card(
        title=f"step {rollout.step}, {sample.rollout_id}",
        reward=None if sample.reward is None else format_number(sample.reward),
        reward_parts=_parts(sample),
        outcome=str(sample.outcome).replace("_", " "),
        is_valid=sample.outcome.is_valid,
        detail=visible(sample.outcome_detail),
        facts=[*_noted(rollout), *_facts(sample)],
        gap=None if style == "gap-none" else "0.0" if gap == 0 else format_number(gap),
        gap_style=style,
        prompt=prompt_text(sample, decode_token),
        tokens=completion_views(rollout, decode_token),
    )


def _parts(sample: Sample) -> list[tuple[str, str]]:
    """Parts of the reward; none if the rollout failed."""
    parts = {} if sample.reward is None else sample.reward_parts
    return [(visible(name), format_number(value)) for name, value in parts.items()]


def _noted(rollout: KeptRollout) -> list[tuple[str, str]]:
    """Notes on the prompt, except the question, which the prompt shows."""
    noted = {name: value for name, value in rollout.note.items() if name != "question"}
    return [(visible(name), visible(str(v))) for name, v in noted.items() if v is not None]


def _facts(sample: Sample) -> list[tuple[str, str]]:
    turns = [_turn_facts(sample, turn, number) for number, turn in enumerate(sample.turns, 1)]
    facts = [
        *itertools.chain.from_iterable(turns),
        ("tokens", token_counts(sample)),
        ("temperature", format_number(sample.temperature)),
    ]
    return [(name, value) for name, value in facts if value]


def _turn_facts(sample: Sample, turn: Turn, number: int) -> list[tuple[str, str]]:
    of_turn = f"turn {number}: " if len(sample.turns) > 1 else ""
    versions = [span.version for span in sample.version_spans(turn) if span.version >= 0]
    facts = [
        ("finish", _finish(turn.finish_reason)),
        ("weight version", _range(min(versions), max(versions)) if versions else ""),
        ("seed", str(turn.seed)),
    ]
    return [(of_turn + name, value) for name, value in facts]


def _finish(reason: FinishReason) -> str:
    matched = f" at id {reason.matched}" if isinstance(reason.matched, int) else ""
    if isinstance(reason.matched, str):
        matched = f" at {visible(reason.matched)!r}"
    message = f": {visible(reason.message)}" if reason.message else ""
    return f"{reason.kind}{matched}{message}"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"
