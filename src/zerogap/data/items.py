"""``PromptItem``: one question of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerogap.data.tokenizer import Message
from zerogap.errors import DataError


@dataclass(frozen=True, kw_only=True)
class PromptItem:
    """One question, as text, messages or ids.

    Example:
        ``PromptItem(item_id="multiplication-0", question="What is 7 * 8?", answer="56")``
    """

    item_id: str
    """Unique in its data set, the same in every run."""
    question: str | None = None
    """Text for the prompt template."""
    messages: tuple[Message, ...] | None = None
    """A conversation for the chat template."""
    prompt_ids: tuple[int, ...] | None = None
    """Ids of the whole prompt."""
    answer: str | None = None
    """Reference answer, for rewards that compare and supervised losses; None if neither needs one."""
    rejected: str | None = None
    """A worse answer, for preference losses."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """All other fields of the data set, for user-defined rewards."""

    def __post_init__(self) -> None:
        forms = {
            "question": self.question,
            "messages": self.messages,
            "prompt_ids": self.prompt_ids,
        }
        given = [name for name, value in forms.items() if value]
        if len(given) != 1:
            msg = f"prompt {self.item_id} has {' and '.join(given) or 'no prompt'}; give exactly one non-empty of {', '.join(forms)}"
            raise DataError(msg)
        if self.rejected is not None and self.rejected == self.answer:
            msg = f"prompt {self.item_id} has {self.answer!r} both as answer and as rejected answer, so there is no preference; change one, or remove the prompt"
            raise DataError(msg)


TaskScore = Callable[[str, PromptItem], float]
"""A data set's score of a completion, from 0 (wrong) to 1 (correct)."""
