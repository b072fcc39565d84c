"""Reward functions that compare a completion with the item's reference answer: 1 if equal, else 0."""

import re
from decimal import Decimal

from zerogap.data import PromptItem
from zerogap.data.answers import last_number
from zerogap.errors import RewardFailed
from zerogap.rollout.rewards import RewardFunction
from zerogap.types import Sample


def exact_reward(completion: str, item: PromptItem, sample: Sample) -> float:
    """1 if the text equals the answer, apart from surrounding white space."""
    return float(completion.strip() == reference(item).strip())


def last_number_reward(completion: str, item: PromptItem, sample: Sample) -> float:
    """1 if the last number in the text equals the last one in the answer; 1200, 1,200 and 1200.0 are equal."""
    return float(last_number(completion) == _reference_number(item))


def build_regex_reward(pattern: str) -> RewardFunction:
    """1 if the last capture of the pattern's first group equals the answer, apart from surrounding white space.

    The dot also matches line ends, so that an answer may span lines.
    """
    compiled = re.compile(pattern, re.DOTALL)

    def regex_reward(completion: str, item: PromptItem, sample: Sample) -> float:
        found = [match.group(1) for match in compiled.finditer(completion)]
        return float(bool(found) and (found[-1] or "").strip() == reference(item).strip())

    return regex_reward


def reference(item: PromptItem) -> str:
    """The item's reference answer.

    Raises:
        RewardFailed: the item has none.
    """
    if item.answer is None:
        msg = f"prompt {item.item_id} has no reference answer to compare with; set data.answer_field, or use a reward that needs none"
        raise RewardFailed(msg)
    return item.answer


def _reference_number(item: PromptItem) -> Decimal:
    number = last_number(reference(item))
    if number is None:
        msg = f'prompt {item.item_id} has the reference answer {item.answer!r}, which holds no number; use reward.kind = "exact"'
        raise RewardFailed(msg)
    return number
