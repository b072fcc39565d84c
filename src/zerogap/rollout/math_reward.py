"""Mathematical equality, by the math-verify package.

Runs only in a worker process: sympy can take forever on what a policy writes, and math-verify's own timeout is a
signal that works only in a main thread and becomes "wrong" elsewhere. So its timeout is off, and the deadline of
``WorkerRewards`` ends the process instead.

math-verify compares numbers rounded to 6 digits after the point and 15 in all, so that 1/2^99 equals 1/2^98. What it
finds equal is therefore compared once more: rational numbers exactly.
"""

import logging

from math_verify import parse, verify

from zerogap.data import PromptItem
from zerogap.errors import RewardFailed
from zerogap.rollout.comparisons import reference
from zerogap.rollout.math_numbers import differ_as_numbers
from zerogap.types import Sample

# math-verify warns that its timeout is off; it is off on purpose.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_NO_TIMEOUT = 0
_DELIMITERS = ("$", "\\(", "\\[", "\\boxed")


def math_reward(completion: str, item: PromptItem, sample: Sample) -> float:
    """1 if the completion's final answer equals the reference, 0 if it differs or there is none.

    Rational numbers must be equal exactly, 0.333333 and 1/3 are not; a percentage equals both of its readings, 50 and 0.5.
    Other numbers may differ by math-verify's rounding, but not by a thousandth.

    Raises:
        RewardFailed: math-verify finds no mathematics in the reference answer.
        Exception: sympy raised it while comparing.
    """
    answer = reference(item)
    # math-verify recognises LaTeX only between delimiters, and reference answers usually have none.
    wanted = _parse(answer if any(d in answer for d in _DELIMITERS) else f"${answer}$")
    if not wanted:
        msg = f"prompt {item.item_id} has the reference answer {answer!r}, in which math-verify finds no mathematics; correct the data"
        raise RewardFailed(msg)
    given = _parse(completion)
    is_equal = verify(wanted, given, timeout_seconds=_NO_TIMEOUT, raise_on_error=True)
    return float(is_equal and not differ_as_numbers(wanted, given))


def _parse(text: str) -> list:
    return parse(text, parsing_timeout=_NO_TIMEOUT, raise_on_error=True)
