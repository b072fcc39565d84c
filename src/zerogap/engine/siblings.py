"""Sequences with one prompt that have not started: one computes the prompt, and the rest fork it.

The first to start is the leader; the others wait. When the leader's last prompt row is computed, its pages and that
row's hidden state are kept here until every sibling has forked them: it shares the full pages, copies the partly filled
one, and draws its first token from the same hidden state with its own noise. No row of a prompt is computed twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from zerogap.engine.prefix_cache import Node, WeightsName
from zerogap.engine.sequence import Sequence


@dataclass(eq=False)
class Siblings:
    """The waiting sequences of one prompt, and its pages once they are computed."""

    num_waiting: int = 0
    leader: Sequence | None = None
    """Computes the prompt, or has computed the kept one."""
    hidden_D: Tensor | None = None
    """Hidden state of the last prompt token; None until the leader has it."""
    pages: list[int] = field(default_factory=list)
    """Pages of the whole prompt, held for the siblings that wait."""
    branch: int = 0
    """The branch of siblings that fork: they go on from the same keys, values and hidden state."""
    node: Node | None = None
    """Deepest published page of the prompt."""
    num_published: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether the prompt is computed and kept."""
        return self.hidden_D is not None

    @property
    def is_computing(self) -> bool:
        """Whether the leader is computing the prompt."""
        return self.leader is not None and self.hidden_D is None

    @property
    def is_orphaned(self) -> bool:
        """Whether the prompt is kept but its leader has stopped: then only the waiting siblings hold its last page."""
        return self.is_ready and not (self.leader and self.leader.is_running)

    def take_pages(self) -> list[int]:
        """Forget the kept prompt; the caller must release the returned pages."""
        pages, self.pages = self.pages, []
        self.leader = self.hidden_D = self.node = None
        self.num_published = 0
        return pages


class SiblingIndex:
    """All prompts that sequences wait for, by their ids. Counts waiting sequences; ``Placement`` owns the pages."""

    def __init__(self) -> None:
        self._by_prompt: dict[tuple[WeightsName, bytes], Siblings] = {}

    def __iter__(self) -> Iterator[Siblings]:
        return iter(self._by_prompt.values())

    def of(self, sequence: Sequence) -> Siblings | None:
        """The entry of the sequence's prompt; None if no sequence waits for it or computes it for others."""
        return self._by_prompt.get(sequence.prompt_key)

    def join(self, sequence: Sequence) -> None:
        """Count a sequence that waits for its first token."""
        self._by_prompt.setdefault(sequence.prompt_key, Siblings()).num_waiting += 1

    def leave(self, sequence: Sequence) -> list[int]:
        """The sequence no longer waits: it forked or ended. Returns unneeded pages for the caller to release."""
        siblings = self._by_prompt[sequence.prompt_key]
        siblings.num_waiting -= 1
        return self._close_if_unused(sequence)

    def lead(self, sequence: Sequence) -> None:
        """The sequence no longer waits: it computes the prompt for all."""
        siblings = self._by_prompt[sequence.prompt_key]
        siblings.num_waiting -= 1
        siblings.leader = sequence

    def leader_stopped(self, sequence: Sequence) -> None:
        """A running sequence gives its pages back: if it was computing the prompt, another must."""
        siblings = self.of(sequence)
        if siblings and siblings.leader is sequence and siblings.is_computing:
            siblings.leader = None
            self._close_if_unused(sequence)

    def waiting_for(self, sequence: Sequence) -> Siblings | None:
        """The siblings that wait for the prompt that this sequence has just computed; None if none does."""
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
