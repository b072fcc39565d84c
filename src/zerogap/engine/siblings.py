"""Sequences with one prompt that have not started: the prompt is computed by one and forked by the rest.

The first of them to start is the leader; the others wait, whatever the scheduling policy. When the
leader's last prompt row is computed, its pages and that row's hidden state are kept here until each
sibling has taken them: it shares the full pages, copies the partly filled one, and draws its first
token from the same hidden state with its own noise. No row of a prompt is computed twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from zerogap.engine.prefix_cache import Node, WeightsName
from zerogap.engine.sequence import Sequence


@dataclass(eq=False)
class Siblings:
    """One prompt's waiting sequences, and its keys and values once they are computed."""

    num_waiting: int = 0
    leader: Sequence | None = None
    """Computes the prompt, or has computed what is kept."""
    hidden_D: Tensor | None = None
    """Hidden state of the last prompt token; None until the leader has it."""
    pages: list[int] = field(default_factory=list)
    """Pages of the whole prompt, held for those who wait."""
    branch: int = 0
    """Of those who fork: they go on from the same keys, values and hidden state."""
    node: Node | None = None
    """Deepest published page of the prompt."""
    num_published: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether the prompt is computed and kept."""
        return self.hidden_D is not None

    @property
    def is_computing(self) -> bool:
        """Whether the leader is at it."""
        return self.leader is not None and self.hidden_D is None

    @property
    def is_orphaned(self) -> bool:
        """Whether only the siblings' own hold keeps the prompt's last page in memory."""
        return self.is_ready and not (self.leader and self.leader.is_running)

    def take_pages(self) -> list[int]:
        """Forget what is kept, and return the pages for the caller to release."""
        pages, self.pages = self.pages, []
        self.leader = self.hidden_D = self.node = None
        self.num_published = 0
        return pages


class SiblingIndex:
    """All prompts with waiting sequences, by their ids. Knows who waits; the scheduler owns the pages."""

    def __init__(self) -> None:
        self._by_prompt: dict[tuple[WeightsName, bytes], Siblings] = {}

    def __iter__(self) -> Iterator[Siblings]:
        return iter(self._by_prompt.values())

    def of(self, sequence: Sequence) -> Siblings | None:
        """Those with the same prompt; None if the sequence is the only one and has started."""
        return self._by_prompt.get(sequence.prompt_key)

    def join(self, sequence: Sequence) -> None:
        """The sequence waits for its first token."""
        self._by_prompt.setdefault(sequence.prompt_key, Siblings()).num_waiting += 1

    def leave(self, sequence: Sequence) -> list[int]:
        """The sequence waits no more: it forked or ended. Returns pages that nobody needs any longer."""
        siblings = self._by_prompt[sequence.prompt_key]
        siblings.num_waiting -= 1
        return self._close_if_unused(sequence)

    def lead(self, sequence: Sequence) -> None:
        """The sequence waits no more: it computes the prompt for all."""
        siblings = self._by_prompt[sequence.prompt_key]
        siblings.num_waiting -= 1
        siblings.leader = sequence

    def leader_stopped(self, sequence: Sequence) -> None:
        """A running sequence gives its pages up: if it was computing the prompt, another one must."""
        siblings = self.of(sequence)
        if siblings and siblings.leader is sequence and siblings.is_computing:
            siblings.leader = None
            self._close_if_unused(sequence)

    def waiting_for(self, sequence: Sequence) -> Siblings | None:
        """Those who wait for the prompt that this sequence has just computed; None if nobody does."""
        siblings = self.of(sequence)
        if siblings is None or siblings.leader is not sequence or siblings.is_ready:
            return None
        if siblings.num_waiting:
            return siblings
        del self._by_prompt[sequence.prompt_key]
        return None

    def _close_if_unused(self, sequence: Sequence) -> list[int]:
        siblings = self._by_prompt[sequence.prompt_key]
        if siblings.num_waiting or siblings.is_computing:
            return []
        del self._by_prompt[sequence.prompt_key]
        return siblings.take_pages()
