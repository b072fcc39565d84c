"""Equality as mathematics, by the math-verify package.

Runs in a worker process only: sympy can take forever on what a policy writes, and math-verify's own
timeout is a signal that works in a main thread alone and turns into "wrong" elsewhere. Its timeout is
therefore off; the deadline of ``WorkerRewards`` ends the process instead.
"""

import logging

from math_verify import parse, verify

from zerogap.data import PromptItem
from zerogap.errors import RewardFailed
from zerogap.rollout.comparisons import reference
from zerogap.types import Sample

# It warns that its timeout is off, which is intended.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_NO_TIMEOUT = 0
_DELIMITERS = ("$", "\\(", "\\[", "\\boxed")


def math_reward(completion: str, item: PromptItem, sample: Sample) -> float:
    """1 if the completion's final answer equals the reference, 0 if it differs or there is none.

    Raises:
        RewardFailed: the reference is no mathematics.
        Exception: what sympy raises while comparing.
    """
    answer = reference(item)
    # LaTeX is only recognised between delimiters, and reference answers usually come bare.
    wanted = _parse(answer if any(d in answer for d in _DELIMITERS) else f"${answer}$")
    if not wanted:
        msg = f"prompt {item.item_id} has the reference answer {answer!r}, in which math-verify finds no mathematics; correct the data"
        raise RewardFailed(msg)
    given = _parse(completion)
    return float(verify(wanted, given, timeout_seconds=_NO_TIMEOUT, raise_on_error=True))


def _parse(text: str) -> list:
    return parse(text, parsing_timeout=_NO_TIMEOUT, raise_on_error=True)
