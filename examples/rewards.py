"""Your own rewards: one of a completion, one of a group. ``zerogap train recipes/tiny.toml examples/rewards.toml``."""

from collections import Counter

from zerogap.data import PromptItem
from zerogap.types import Sample


def letters(completion: str, item: PromptItem, sample: Sample) -> float:
    """The share of characters that are letters: a reward for the format."""
    return sum(map(str.isalpha, completion)) / max(len(completion), 1)


def rarity(
    completions: list[str], item: PromptItem, samples: list[Sample], *, power: float = 1.0
) -> list[float]:
    """1 for an answer that no sibling gave, 1/2 for one that two gave, and so on: a reward for variety."""
    count = Counter(completions)
    return [1 / count[completion] ** power for completion in completions]
