"""Extracts answers from completions and scores them. Pure functions of strings.

Scores are in [0, 1]; 1 means correct. A score never raises, whatever the policy wrote.
"""

import re
from collections.abc import Iterable
from decimal import Decimal

# A minus sign counts only where it cannot be a subtraction: not directly after a digit, a letter or a bracket.
_NUMBER = re.compile(
    r"(?<!\w)(?<![0-9]\.)"
    r"(?:(?<![)\]])[-\N{MINUS SIGN}])?"
    r"[0-9]+(?:,[0-9]{3})*(?![0-9])(?:\.[0-9]+)?"
)
_WORD = re.compile(r"[^\W\d_]+")

PRINTABLE_CREDIT = 0.05
"""Credit for a printable character in place of the correct letter."""
LETTER_CREDIT = 0.15
"""Credit for a lower-case letter that the task does not use."""
ALPHABET_CREDIT = 0.25
"""Credit for a wrong letter that the task uses.

These three credits lead a policy that starts as noise over 259 bytes first to letters, then to the right one. The correct
letter always earns more than any of them."""


def last_number(text: str) -> Decimal | None:
    """The last number in the text; commas may separate thousands.

    Example:
        ``last_number("3 * 400 = 1,200.") == Decimal(1200)``
    """
    return _to_decimal(next(reversed(list(_NUMBER.finditer(text))), None))


def last_word(text: str) -> str:
    """The last run of letters, in lower case; empty if there is none."""
    return next(reversed(_WORD.findall(text)), "").lower()


def sequence_credit(given: str, wanted: str) -> float:
    """Twice the longest common subsequence over the sum of the lengths: 1 if equal, 0 if nothing matches."""
    if not given or not wanted:
        return float(given == wanted)
    return 2 * _common_subsequence(given, wanted) / (len(given) + len(wanted))


def character_credit(given: str, wanted: str, *, alphabet: Iterable[str]) -> float:
    """Mean credit of the characters by position, over the length of the longer text.

    Args:
        given: what the policy wrote.
        wanted: the only text with score 1.
        alphabet: the letters that the task uses.
    """
    letters = frozenset(alphabet)
    earned = [_credit(g, w, letters) for g, w in zip(given, wanted, strict=False)]
    return sum(earned) / max(len(given), len(wanted), 1)


def _credit(given: str, wanted: str, letters: frozenset[str]) -> float:
    if given == wanted:
        return 1.0
    if given in letters:
        return ALPHABET_CREDIT
    if "a" <= given <= "z":
        return LETTER_CREDIT
    return PRINTABLE_CREDIT if " " <= given <= "~" else 0.0


def _common_subsequence(a: str, b: str) -> int:
    lengths = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, start=1):
            here = lengths[j]
            lengths[j] = before + 1 if x == y else max(lengths[j], lengths[j - 1])
            before = here
    return lengths[-1]


def _to_decimal(match: re.Match[str] | None) -> Decimal | None:
    if match is None:
        return None
    return Decimal(match.group().replace(",", "").replace("\N{MINUS SIGN}", "-"))
