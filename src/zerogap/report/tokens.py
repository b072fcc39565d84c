"""Shows a rollout token by token, coloured by gap and probability."""

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.report.numbers import format_log_prob
from zerogap.report.rollouts import KeptRollout
from zerogap.types import SAMPLE_COLUMNS, Ragged, Sample, Source
from zerogap.types.columns import Values

MAX_TOKENS = 2000
"""At most this many tokens of a completion are shown: three quarters from its start, one quarter from its end."""

DecodeToken = Callable[[int], str]

_GAP_LIMITS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
_CHANCE_LIMITS = (0.01, 0.1, 0.5, 0.9)

GAP_LEGEND = (
    ("gap-zero", "exactly 0"),
    ("gap-0", "below 1e-6"),
    ("gap-1", "below 1e-4"),
    ("gap-2", "below 0.001"),
    ("gap-3", "below 0.01"),
    ("gap-4", "below 0.1"),
    ("gap-5", "0.1 nats and more"),
    ("gap-none", "not compared"),
)
"""(CSS class, meaning) of |trainer's - engine's log-prob|."""
CHANCE_LEGEND = (
    ("chance-4", "90 % and more"),
    ("chance-3", "50 to 90 %"),
    ("chance-2", "10 to 50 %"),
    ("chance-1", "1 to 10 %"),
    ("chance-0", "below 1 %"),
    ("chance-none", "not sampled"),
)
"""(CSS class, meaning) of the probability with which the engine sampled the token."""
_OPTIONAL = tuple(column.name for column in SAMPLE_COLUMNS if column.is_optional)
SAMPLE_FIELDS = (
    "weight version",
    "log of kept mass",
    *(name.replace("_", " ") for name in _OPTIONAL),
)
"""Columns of a sample that are shown for a token; optional columns by their names."""
_MAX_VALUES = 8
"""At most this many values of a token are shown from an optional column."""
FIELDS = (
    "position",
    "id",
    "role",
    "engine's log-prob",
    "trainer's log-prob",
    "|difference|",
    *SAMPLE_FIELDS,
)
"""Numbers that the report shows for a token."""


@dataclass(frozen=True)
class TokenView:
    """One token as the page shows it."""

    text: str
    """All characters are visible, except blanks, tabs and the line break after a visible ``↵``."""
    style: str
    """CSS classes."""
    detail: str
    """Values of the page's fields, joined by |; may be empty."""


@dataclass(frozen=True)
class Omission:
    """Hidden tokens in the middle of a long completion."""

    num_tokens: int
    largest_gap: str
    """Empty if no token was compared."""


def prompt_text(sample: Sample, decode_token: DecodeToken) -> str:
    """Text of the leading prompt tokens, with special ones."""
    ids = sample.token_ids[: sample.num_prompt_tokens]
    return "".join(token_text(int(token_id), decode_token) for token_id in ids)


def token_counts(sample: Sample) -> str:
    """How many tokens the prompt, the turns and, if there is one, the environment wrote."""
    environment = int((sample.source == Source.ENVIRONMENT).sum())
    counts = f"{sample.num_prompt_tokens:,} + {sample.num_completion_tokens:,}"
    return f"{counts}, and {environment:,} of the environment" if environment else counts


def completion_views(rollout: KeptRollout, decode_token: DecodeToken) -> list[TokenView | Omission]:
    """Views of the tokens after the prompt, at most ``MAX_TOKENS``."""
    gap = rollout.gap
    return shorten(rollout.sample, gap, lambda at: _view(rollout, gap, at, decode_token))


def shorten(
    sample: Sample, gap: np.ndarray, view: Callable[[int], TokenView]
) -> list[TokenView | Omission]:
    """Views of all tokens after the prompt, or of ``MAX_TOKENS`` of them and an ``Omission``.

    Args:
        sample: of T tokens.
        gap: float [T]: absolute differences; NaN at tokens that were not compared.
        view: makes the view of the token at a position.
    """
    start, end = sample.num_prompt_tokens, len(sample)
    if end - start <= MAX_TOKENS:
        return [view(at) for at in range(start, end)]
    head, tail = start + MAX_TOKENS * 3 // 4, end - MAX_TOKENS // 4
    return [
        *(view(at) for at in range(start, head)),
        Omission(tail - head, format_log_prob(largest(gap[head:tail]))),
        *(view(at) for at in range(tail, end)),
    ]


def largest(values: np.ndarray) -> float:
    """The largest value that is not NaN; NaN if there is none."""
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else math.nan


def gap_style(gap: float) -> str:
    """CSS class of a difference; exactly 0 and NaN have their own."""
    if math.isnan(gap):
        return "gap-none"
    return "gap-zero" if gap == 0 else f"gap-{_bucket(gap, _GAP_LIMITS)}"


def chance_style(log_prob: float) -> str:
    """CSS class of a token's probability."""
    if math.isnan(log_prob):
        return "chance-none"
    return f"chance-{_bucket(math.exp(log_prob), _CHANCE_LIMITS)}"


def visible(text: str) -> str:
    """``text`` with invisible and direction-changing characters spelled out."""
    return "".join(_visible_character(character) for character in text)


def _view(rollout: KeptRollout, gap: np.ndarray, at: int, decode_token: DecodeToken) -> TokenView:
    sample = rollout.sample
    engine, trainer = float(sample.rollout_log_probs[at]), float(rollout.old_log_probs[at])
    numbers = [format_log_prob(value) for value in (engine, trainer, float(gap[at]))]
    styles = [gap_style(float(gap[at])), chance_style(engine)]
    return token_view(sample, at, decode_token, styles=styles, numbers=numbers)


def token_view(
    sample: Sample,
    at: int,
    decode_token: DecodeToken,
    *,
    styles: Sequence[str],
    numbers: Sequence[str],
) -> TokenView:
    """View of the token at position ``at``: position, id, role, ``numbers``, then ``SAMPLE_FIELDS``."""
    is_sampled = sample.weight_version[at] >= 0
    fields = [
        str(at),
        str(sample.token_ids[at]),
        role_of(sample, at),
        *numbers,
        str(sample.weight_version[at]) if is_sampled else "",
        format_log_prob(float(sample.kept_log_mass[at])) if is_sampled else "",
        *(_row_text(sample.columns.get(name), at) for name in _OPTIONAL),
    ]
    text = token_text(int(sample.token_ids[at]), decode_token).replace("\n", "↵\n")
    foreign = () if sample.source[at] == Source.POLICY else ("foreign",)
    return TokenView(text, " ".join([*styles, *foreign]), "|".join(fields))


def _row_text(column: Values | None, at: int) -> str:
    """The first values of a token's row; empty if there is none."""
    if column is None:
        return ""
    row = column[at : at + 1]
    values = (row.values if isinstance(row, Ragged) else row).ravel().tolist()
    shown = ", ".join(map(str, values[:_MAX_VALUES]))
    return f"{shown}, … ({len(values):,} in all)" if len(values) > _MAX_VALUES else shown


def role_of(sample: Sample, at: int) -> str:
    """Source and use of a token."""
    role = Source(int(sample.source[at])).name.lower()
    if sample.weight_version[at] < 0:
        return f"{role}, not sampled"
    return role if sample.loss_mask[at] else f"{role}, sampled, does not train"


def token_text(token_id: int, decode_token: DecodeToken) -> str:
    """Visible text of a token; never empty."""
    try:
        text = decode_token(token_id)
    except (LookupError, ValueError, OverflowError):  # an id that the tokenizer does not have
        text = ""
    return visible(text) if text else f"⟨id {token_id}⟩"


def _visible_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _INVISIBLE:
        return character
    return f"⟨U+{ord(character):04X}⟩"


_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Control, format (bidirectional marks too), lone surrogate, private, unassigned, line and paragraph separators."""


def _bucket(value: float, limits: Sequence[float]) -> int:
    """Number of limits that the value has reached."""
    return sum(value >= limit for limit in limits)
