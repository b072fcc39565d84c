"""The record between a data set and a rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerogap.data.tokenizer import Message
from zerogap.errors import DataError


@dataclass(frozen=True, kw_only=True)
class PromptItem:
    """One question, in exactly one of three forms.

    Example:
        ``PromptItem(item_id="multiplication-0", question="What is 7 * 8?", answer="56")``
    """

    item_id: str
    """Unique in its data set, and the same in every run."""
    question: str | None = None
    """Text that goes into the prompt template."""
    messages: tuple[Message, ...] | None = None
    """A conversation for the chat template."""
    prompt_ids: tuple[int, ...] | None = None
    """Ids that are the prompt already."""
    answer: str | None = None
    """What the reward compares with, and what supervised losses train on; None if neither needs one."""
    rejected: str | None = None
    """A worse answer, for losses that compare two."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the data set says, for rewards of the user's own."""

    def __post_init__(self) -> None:
        forms = {
            "question": self.question,
            "messages": self.messages,
            "prompt_ids": self.prompt_ids,
        }
        given = [name for name, value in forms.items() if value]
        if len(given) != 1:
            msg = f"prompt {self.item_id} has {' and '.join(given) or 'nothing to ask'}; give exactly one non-empty of {', '.join(forms)}"
            raise DataError(msg)
        if self.rejected is not None and self.rejected == self.answer:
            msg = f"prompt {self.item_id} has {self.answer!r} as its answer and as the rejected one: equal texts cannot be told apart; change one, or leave the prompt out"
            raise DataError(msg)


TaskScore = Callable[[str, PromptItem], float]
"""A data set's own score of a completion's text, from 0 (wrong) to 1 (right)."""
