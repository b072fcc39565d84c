"""Reward functions that compare a completion with the item's reference answer: 1 if equal, else 0."""

import re
from decimal import Decimal

from zerogap.data import PromptItem, TaskScore
from zerogap.data.answers import last_number
from zerogap.errors import RewardFailed
from zerogap.types import Sample


def exact_reward(completion: str, item: PromptItem, sample: Sample) -> float:
    """1 if the text equals the answer, apart from surrounding white space."""
    return float(completion.strip() == reference(item).strip())


def last_number_reward(completion: str, item: PromptItem, sample: Sample) -> float:
    """1 if the last number in the text equals the last one in the answer; 1200, 1,200 and 1200.0 are equal."""
    return float(last_number(completion) == _reference_number(item))


def regex_reward(completion: str, item: PromptItem, sample: Sample, *, pattern: str) -> float:
    """1 if the last capture of the pattern's first group equals the answer, apart from surrounding white space.

    The dot also matches line ends, so that an answer may span lines. A pattern can take forever on what a policy writes,
    and nothing interrupts Python's matching, so this runs only in a worker process.
    """
    found = [match.group(1) for match in re.finditer(pattern, completion, re.DOTALL)]
    return float(bool(found) and (found[-1] or "").strip() == reference(item).strip())


def task_reward(completion: str, item: PromptItem, sample: Sample, *, score: TaskScore) -> float:
    """The data set's own score, for one that is another package's: it may hang, so this runs only in a worker process."""
    return score(completion, item)


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
